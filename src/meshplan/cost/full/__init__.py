"""The full cost model: layer → stage → step, over columns."""
