"""A cluster measured: kernels and collectives timed, curves fitted, a profile that ``--cluster`` takes."""
