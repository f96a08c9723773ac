"""Sentences that the rooms below say (errors, rules, assumptions, evidence), in the reader's language.

Those rooms write one English sentence; this room knows its Chinese form from ``data/sentences.toml``, where
``{names}`` stand for what varies. A sentence that is not known there stays as it is.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from meshplan.report.words import Words
from meshplan.units import one_is_singular

_FILE = Path(__file__).parent / "data" / "sentences.toml"
_NAME = re.compile(r"\{(\w+)\}")
_LIST = re.compile(r"(?<=\S) (and|or) (?=\S)")
_JOINS = {"and": "和", "or": "或"}
_QUOTED = re.compile(r"(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)|\"(?:[^\"\\]|\\.)*\"")
_PARTS = re.compile(r"[a-z][A-Za-z ]*(?= \d)")
_PHRASES = {
    "the config.json": "config.json", "the cluster file": "集群文件", "a list": "列表", "an object": "对象",
    "a size": "容量", "a bandwidth": "带宽", "a time": "时间", "a compute rate": "算力", "a power": "功率",
    "model": "模型", "cost model": "成本模型", "stack": "软件栈", "picture": "图", "target": "目标框架",
    "launcher": "启动方式", "a number": "一个数", "text": "文字", "a table": "表",
    "a list of numbers": "数的列表",
    "expecting property name enclosed in double quotes": "缺少用双引号括起的键名",
    "expecting value": "缺少值", "extra data": "后面有多余的内容",
    "illegal trailing comma before end of object": "对象末尾多了逗号",
    "unterminated string starting": "字符串没有结束",
}  # fmt: skip
"""What may stand for a name in a sentence."""
_KINDS = {
    "encoder-decoder layers": "编码器-解码器层",
    "Kimi delta attention (linear attention)": "Kimi delta 注意力（线性注意力）",
    "gated DeltaNet linear attention": "门控 DeltaNet 线性注意力",
    "lightning (linear) attention": "lightning（线性）注意力",
    "Mamba state-space layers": "Mamba 状态空间层",
    "recurrent (RG-LRU, RWKV or xLSTM) layers": "循环层（RG-LRU、RWKV 或 xLSTM）",
    "short-convolution layers": "短卷积层",
    "compressed sparse attention": "压缩稀疏注意力",
    "sparse attention with an indexer": "带索引器的稀疏注意力",
    "sparse attention in blocks": "分块稀疏注意力",
    "hyper-connections": "超连接",
    "attention residuals between blocks": "块间注意力残差",
    "latent mixture-of-experts": "潜在混合专家",
    "shortcut mixture-of-experts with identity experts": "带恒等专家的捷径混合专家",
    "per-layer embeddings": "逐层词嵌入",
    "layers that share keys and values": "共享键值的层",
    "cross-attention layers": "交叉注意力层",
    "n-gram memory (Engram)": "n-gram 记忆（Engram）",
    "RWKV layers": "RWKV 层",
    "xLSTM layers": "xLSTM 层",
    "bidirectional encoder layers": "双向编码器层",
}
"""Layers that are not known, as ``model.unknown`` names them."""
_STRING = re.compile(r"the (string|text) (.*)", re.DOTALL)
MOST_CHARACTERS = 600
"""Longer texts hold something a user dropped: not sentences of ours."""


class _Pattern(NamedTuple):
    english: re.Pattern[str]
    chinese: str


def said(sentence: str, words: Words) -> str:
    """``sentence`` in the language of ``words``.

    >>> from meshplan.report.words import words_in
    >>> said("tp 3 does not divide 64 heads; tp 2 or 4 would", words_in("zh"))
    'tp 3 不能整除 64 个注意力头；tp 为 2 或 4 则可以'
    >>> said("job.yaml: seq must be from 1 to 9, not '0'", words_in("zh"))
    "job.yaml：seq 须在 1 到 9 之间，不能是 '0'"
    """
    if len(sentence) > MOST_CHARACTERS:
        return sentence
    if words.language == "en":
        return one_is_singular(sentence)
    quoted: list[str] = []
    plain = _QUOTED.sub(lambda match: _kept(match[0], quoted), sentence)
    found = _clauses(plain, words)
    return sentence if found is None else _KEPT.sub(lambda match: quoted[ord(match[0]) - _FIRST], found)


_MORE = re.compile(r"(.*) \(and (\d+) more(?:: ([a-z0-9, -]+))?\)")
"""What else is wrong, behind the first: how much, and of a plan the rules by name."""
_FIRST = 0xE000
_KEPT = re.compile("[\ue000-\uf8ff]")
"""Letters for private use: each stands for a quotation, in which nothing is ours."""


def _kept(quotation: str, quoted: list[str]) -> str:
    quoted.append(quotation)
    return chr(_FIRST + len(quoted) - 1)


def _clauses(sentence: str, words: Words) -> str | None:
    """The Chinese form of clauses joined by semicolons, the first of which must be known."""
    more = _MORE.fullmatch(sentence)
    if more is not None:
        first = _clauses(more[1], words)
        rules = f"：{more[3]}" if more[3] else ""
        return None if first is None else f"{first}（另有 {more[2]} 条{rules}）"
    whole = _known(sentence, words)
    if whole is not None:
        return whole
    parts = sentence.split("; ")
    found = [_placed(part, words) for part in parts]
    if found[0] is None:
        return None
    return "；".join(part if other is None else other for part, other in zip(parts, found, strict=True))


def _placed(clause: str, words: Words) -> str | None:
    """The Chinese form of a clause that may begin with the place it is about: ``job.yaml: …``."""
    found = _known(clause, words)
    place, colon, rest = clause.partition(": ")
    if found is not None or not colon:
        return found
    other = _placed(rest, words)
    return None if other is None else f"{_known(place, words) or _value('where', place, words)}：{other}"


def _known(sentence: str, words: Words) -> str | None:
    """The Chinese form of a sentence, if there is one."""
    for pattern in _patterns():
        match = pattern.english.fullmatch(sentence)
        if match is not None:
            values = {name: _value(name, value, words) for name, value in match.groupdict().items()}
            return pattern.chinese.format(**values)
    return None


def _value(name: str, value: str, words: Words) -> str:
    """What stands for a name of a sentence, where it is words of ours."""
    if name == "parts":  # of the memory or the time, each with its amount
        return _PARTS.sub(lambda match: words.part(match[0]), value)
    string = _STRING.fullmatch(value)
    if string is not None:
        return f"{'字符串' if string[1] == 'string' else '文字'} {string[2]}"
    if name == "kinds":
        for english, chinese in _KINDS.items():
            value = value.replace(english, chinese)
    return _PHRASES.get(value) or _LIST.sub(_joined, value)


def _joined(match: re.Match[str]) -> str:
    return f" {_JOINS[match[1]]} "


@cache
def sentences() -> tuple[tuple[str, str], ...]:
    """English and Chinese."""
    with _FILE.open("rb") as file:
        return tuple((entry["en"], entry["zh"]) for entry in tomllib.load(file)["said"])


@cache
def _patterns() -> tuple[_Pattern, ...]:
    found = sorted(sentences(), key=lambda pair: -len(_NAME.sub("", pair[0])))  # what says most comes first
    return tuple(_Pattern(_pattern(english), chinese) for english, chinese in found)


def _pattern(english: str) -> re.Pattern[str]:
    """What matches ``english``, each name any text but a semicolon or a colon with a space behind, each
    quotation any quotation."""
    parts = _NAME.split(_QUOTED.sub("{quoted}", english))
    found = []
    for i, text in enumerate(parts):
        if i % 2 == 0:
            found.append(re.escape(text))
        else:
            found.append(_KEPT.pattern if text == "quoted" else f"(?P<{text}>(?:(?!: )[^;])+?)")
    return re.compile("".join(found))
