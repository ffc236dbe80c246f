#!/usr/bin/env python3
"""Writes fixtures/fuzz.texts.json, random texts by kind, and fixtures/fuzz.digests.json, what Hugging Face `tokenizers`
makes of each with the tokenizers of fixtures/ and, where they are present, those of ../shared/tokenizers.

A text that is no UTF-8 is given in hexadecimal; `tokenizers` sees it as Python decodes it with errors="replace".
A digest is the 32-bit FNV-1a, in hexadecimal, over the ids as little-endian u32, the decoded text, and the decoded text
without special tokens, each followed by the bytes FF FF FF FF.

Needs `pip install tokenizers==0.23.3`. Deterministic.
"""
import json
import pathlib
import random
import struct

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent / "fixtures"
SHARED = HERE.parents[3] / "shared/tokenizers"
PER_KIND = 40

WORDS = {
    "latin": "the quick brown fox I'm don't WE'LL they're naïve Zürich œuvre Ærøskøbing İstanbul straße ĳ ﬁne".split(),
    "cyrillic": "Привет мир съёмка ЩУКА ѣ".split(),
    "greek": "Ελλάδα ΣΑΣ ὀδυσσεύς ϐ".split(),
    "hebrew and arabic": "שלום עִבְרִית مرحبا مُحَمَّد ﷺ ۱۲۳".split(),
    "indic": "हिन्दी क्षत्रिय தமிழ் বাংলা ਪੰਜਾਬੀ".split(),
    "south-east asian": "ภาษาไทย ខ្មែរ မြန်မာ ລາວ".split(),
    "cjk": "日本語 東京タワー カタカナ ｶﾀｶﾅ 한국어 中文字符 〇一二 々 ㍿".split(),
    "others": "ქართული አማርኛ ᓄᓇᕗᑦ 𐍈𐌰 𝔘𝔫𝔦 𝟘𝟙 🜁 ꙮ".split(),
}
SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000\u200b\ufeff"
MARKS = [(0x300, 0x36F), (0x483, 0x489), (0x591, 0x5BD), (0x64B, 0x65F), (0x93C, 0x94D), (0xE31, 0xE3A), (0x1AB0, 0x1ABE),
         (0x20D0, 0x20F0), (0x3099, 0x309A), (0xFE00, 0xFE0F), (0x1D165, 0x1D169), (0xE0100, 0xE0110)]
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "🏴‍☠️", "🇩🇪", "🇧🇷🇫🇷", "👍🏽", "🤦🏿‍♂️", "1️⃣", "#️⃣", "❤️‍🔥", "☺", "☺️", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "🫠", "🧑🏻‍❤️‍💋‍🧑🏿", "\u200d", "\ufe0f"]
CODE = ["for", "if", "else:", "return", "self.", "x_1", "fooBar", "(", ")", "{", "}", "[", "]", " = ", "==", "!=", "->", "=>", "::",
        "//", "/*", "*/", "#", "'", '"', "`", "\\n", "\\", "\t", "    ", "        ", "\n", "\n\n", "\r\n", ";", ",", ".", "0x1F",
        "1e-5", "3.14", "<div>", "</div>", "&amp;", "@", "$", "%", "^", "~", "|", "?", "  "]
DIGITS = ["0", "1", "42", "007", "1,024", "3.14159", "-17", "+4", "1e10", "½", "²", "①", "Ⅷ", "٣٤", "१२", "一", "１２３", "𝟗", "৪", ":", "/",
          "-", ".", " ", "%", "€", "№", "12345678901234567890"]
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<think>",
           "<|x|>", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "<mask>", "<bos>", "<eos>", "<start_of_turn>", "<0x41>", "<0xFF>", "▁", "Ġ",
           "naïve", "mañana", "Café", "##s", "@@", "</w>", "<|user|>", "<|end|>", ">>TITLE<<", "<|", "|>"]
CONTRACTIONS = ["I", "we", "SHE", "'", "’", "'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "'ſ", "ſ", " ", "''", "n't", "o'",
                "rock", "-", "1", "."]


def texts():
    r = random.Random(1958)

    def some(choices, least, most, between=("",)):
        return "".join(r.choice(choices) + r.choice(between) for _ in range(r.randrange(least, most)))

    def character(low, high):
        while True:
            code = r.randrange(low, high)
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    def planes():
        plane = r.choice([0] * 6 + [1] * 4 + [2, 3, 14, 15, 16])
        return "".join(character(plane << 16, plane + 1 << 16) + r.choice(["", "", " ", "a"]) for _ in range(r.randrange(1, 25)))

    def blocks():
        start = r.choice([r.randrange(0, 0x1B0), r.randrange(0x1C0, 0x400)]) << 7
        return "".join(character(start, start + 128) + r.choice(["", "", "", " "]) for _ in range(r.randrange(1, 25)))

    def combining():
        parts = []
        for _ in range(r.randrange(1, 10)):
            parts.append(r.choice("aeioucsнйक가ᄒ\u1161か A1 "))
            parts += [chr(r.randint(*r.choice(MARKS))) for _ in range(r.choice([0, 1, 1, 2, 3, 8]))]
        return "".join(parts)

    def mixed():
        return "".join(r.choice(WORDS[r.choice(list(WORDS))]) + r.choice(["", "", " ", ", ", "-", "."]) for _ in range(r.randrange(1, 14)))

    def malformed():
        data = bytearray((mixed() + some(EMOJI, 0, 3)).encode())
        for _ in range(r.randrange(1, 5)):
            at = r.randrange(len(data) + 1)
            kind = r.randrange(4)
            if kind == 0:
                data[at:at] = r.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80\x80", b"\xc3"])
            elif kind == 1:
                del data[at : at + 1]
            elif at < len(data):
                data[at] = r.randrange(256)
        return bytes(data)

    kinds = {
        "planes": planes,
        "blocks": blocks,
        "combining marks": combining,
        "emoji": lambda: some(EMOJI, 1, 10, ["", "", " ", "x", "!"]),
        "whitespace": lambda: some(["", "", "a", "word", "1", "é", ".", "日"], 1, 12, [some(SPACES, 0, 6), " ", "  ", "\n", some(" \n", 0, 9)]),
        "code": lambda: some(CODE, 1, 40),
        "digits": lambda: some(DIGITS, 1, 20, ["", "", "", " "]),
        "mixed scripts": mixed,
        "special tokens": lambda: some(SPECIAL, 1, 8, ["", " ", "  ", "a", "\n", " the ", "'"]),
        "contractions": lambda: some(CONTRACTIONS, 1, 25),
        "malformed": malformed,
    }
    return {kind: [make() for _ in range(PER_KIND)] for kind, make in kinds.items()}


def digest(tokenizer, text):
    ids = tokenizer.encode(text).ids
    parts = [struct.pack(f"<{len(ids)}I", *ids)]
    parts += [tokenizer.decode(ids, skip_special_tokens=skip).encode() for skip in (False, True)]
    value = 0x811C9DC5
    for byte in b"".join(part + b"\xff\xff\xff\xff" for part in parts):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (HERE / name).write_text(text.replace('],"', '],\n"') + "\n", encoding="utf-8")


def main():
    corpus = texts()
    write("fuzz.texts.json", {kind: [{"hex": t.hex()} if isinstance(t, bytes) else t for t in of_kind] for kind, of_kind in corpus.items()})
    seen = [t.decode("utf-8", errors="replace") if isinstance(t, bytes) else t for of_kind in corpus.values() for t in of_kind]
    files = {path.name.removesuffix(".cases.json"): path.with_name(path.name.replace(".cases", "")) for path in HERE.glob("*.cases.json")}
    files |= {f"shared/{path.parent.name}": path for path in SHARED.glob("*/tokenizer.json")}
    digests = {}
    for name, path in sorted(files.items()):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        digests[name] = [digest(tokenizer, text) for text in seen]
    write("fuzz.digests.json", digests)


if __name__ == "__main__":
    main()
