#!/usr/bin/env python3
"""Writes fixtures/: small tokenizers of every kind, and what Hugging Face `tokenizers` makes of some texts with them.

fixtures/texts.json        the texts
fixtures/NAME.json         a tokenizer.json
fixtures/NAME.cases.json   per text: ids, ids without special tokens where they differ, decoded text where it isn't the
                           text itself, decoded text without special tokens where that differs; and `sweep`, a
                           checksum of the ids of a text that walks through all of Unicode

Needs `pip install tokenizers==0.23.3`. Deterministic but for the trainers' ties: run it anew only to add a tokenizer,
and then check the diff.
"""
import json
import pathlib
import random
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent / "fixtures"

CORPUS = """\
The miller's daughter walked down to the river before the sun was up, and nobody in the village heard her go.
"I don't think we'll be there by seven," he said, "but they've promised to wait, and she's never late."
It was the best bread that he had ever eaten; it was also the only bread that he had eaten for three days.
There are 365 days in a year, 52 weeks, and about 31,557,600 seconds; 3.14159 is only an approximation.
We counted 12 apples, 144 pears and 1,024 plums in the orchard on 07/08/2019 at 18:45.
The old clock on the wall had stopped, and the children were told not to touch it, which they did anyway.
Running, jumping, singing and dancing are good for people; reading is good for people who have finished dancing.
He wrote to her, and she wrote to him, and in the end they understood that the letters had crossed.
for (int i = 0; i < count; ++i) { total += values[i] * weights[i]; }  // the weighted sum
def mean(values): return sum(values) / len(values) if values else 0.0
if x != None and not isinstance(x, str): raise ValueError(f"expected a string, got {type(x)!r}")
    return {"name": name, "size": len(name), "items": [item.strip() for item in name.split(",")]}
La petite fille n'a pas voulu manger sa soupe, même quand sa grand-mère l'a appelée; elle préférait le gâteau.
Die Straßenbahn fährt über die Brücke, und der Schaffner grüßt die Kinder, die am Ufer spielen.
El niño soñó con un pingüino que hablaba español y comía piñas en la cigüeña de su abuela.
Мальчик вышел из дома рано утром, и никто не знал, куда он пошёл; вечером он вернулся с рыбой.
Το παιδί έτρεξε στη θάλασσα και βρήκε ένα κοχύλι που έμοιαζε με αστέρι.
今日はとても良い天気ですから、川まで散歩に行きましょう。コーヒーも飲みたいです。
我们昨天去了图书馆，借了三本书，今天下午要还回去。
오늘은 날씨가 좋아서 강까지 걸어갔습니다. 커피도 마셨어요.
كان الولد يلعب قرب النهر مع أصدقائه في الصباح الباكر.
लड़का सुबह नदी के किनारे अपने दोस्तों के साथ खेल रहा था।
เด็กชายเดินไปที่แม่น้ำตั้งแต่เช้าตรู่
"""

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
]


def random_texts():
    r = random.Random(20240229)
    words = (
        "the of and I'm don't WE'LL they're Hello, world! foo_bar(x) == 3.14159 12345 a1b2 --- ... ''' \"\" naïve café "
        "Zürich ſ 'ſ 'S ’s 東京 日本語テキスト 한국어 Привет мир שלום مرحبا हिन्दी ภาษาไทย ▁▁ Ġ <s> </s> <|endoftext|> [CLS] "
        "[MASK] <unk> <0x41> ①② ½ x² ǅ ʰA ﬁ İstanbul ΣΑΣ"
    ).split(" ")
    spaces = [" ", "  ", "\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2009", "\u200b", "\u0085", "   \n\n\t "]
    emoji = "👩‍👩‍👧 🏳️‍🌈 é e\u0301 क्षि 한 \u1112\u1161\u11ab ﷺ ㌔ \u212b 🇩🇪 👍🏽 1️⃣".split(" ") + [" ", "x"]
    code = ["for", "if", " (", "):\n", "    ", "\t", "return ", "x", "+=", "0x1F", "1e-5", "//", "/* */", "'", "{}", " "]

    def character():
        k = r.random()
        if k < 0.3:
            return chr(r.randrange(32, 127))
        if k < 0.4:
            return chr(r.randrange(0, 0x300))
        if k < 0.5:
            return chr(r.choice([r.randrange(0x300, 0x370), r.randrange(0x93C, 0x950), 0x200D, 0xFE0F, 0x3099]))
        if k < 0.75:
            return chr(r.randrange(0x370, 0xD7FF))
        return chr(r.choice([r.randrange(0xE000, 0x10000), r.randrange(0x10000, 0x20000), r.randrange(0x20000, 0x110000)]))

    def pick(choices, least, most):
        return "".join(r.choice(choices) for _ in range(r.randrange(least, most)))

    for _ in range(9):
        yield "".join(character() for _ in range(r.randrange(1, 30)))
        yield "".join(r.choice(words) + r.choice(spaces) for _ in range(r.randrange(1, 12)))
        yield r.choice(spaces) + "".join(r.choice(words) + r.choice(spaces + [""] * 6) for _ in range(r.randrange(1, 12)))
        yield pick("abcdeéABC  \n12.,'\"-_/", 1, 50)
        yield pick(emoji, 1, 14)
        yield " ".join(pick("aAbBʰǅªº中ー'sS", 1, 8) for _ in range(5))
        yield pick(code, 1, 25)


def all_texts():
    fixed = ["", " ", "  ", "\n", "a", "'", " '", "Hello, world!", "\u0000 NUL", "x" * 200, " " * 40 + "x", "1234567890" * 5]
    fixed += ["\r\n\r\n \n", "e\u0301\u0301\u0323", "\ufeffBOM", "a\ufffdb", "The <s>end</s> is <|endoftext|>near"]
    return fixed + CORPUS.splitlines()[::2] + list(random_texts())


def sweep_text():
    """All of Unicode, every 13th code point, an "a" and a space strewn in."""
    parts = []
    for i, code in enumerate(range(0, 0x110000, 13)):
        if 0xD800 <= code < 0xE000:
            continue
        parts.append(chr(code) + ("a" if i % 5 == 0 else " " if i % 7 == 0 else ""))
    return "".join(parts)


def checksum(ids):
    """FNV-1a over the ids as little-endian u32."""
    value = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(ids)}I", *ids):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def lines():
    return CORPUS.splitlines()


def special(content, **flags):
    return AddedToken(content, normalized=False, special=True, **flags)


def bytes_as_tokens():
    return [f"<0x{byte:02X}>" for byte in range(256)]


def template(single, pair, *tokens):
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(tokens))


def train_bpe(tokenizer, size, special_tokens=(), alphabet=(), limit=None, **options):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special_tokens), initial_alphabet=list(alphabet), show_progress=False,
        **({"limit_alphabet": limit} if limit else {}), **options)
    tokenizer.train_from_iterator(lines(), trainer)
    return tokenizer


def byte_level_bpe(pre_tokenizer, normalizer=None, ignore_merges=False, size=420):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return train_bpe(tokenizer, size, alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def gpt2():
    tokenizer = byte_level_bpe(byte_level())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([special("<|endoftext|>")])
    return tokenizer


def llama3():
    tokenizer = byte_level_bpe(
        pre_tokenizers.Sequence([split(LLAMA3), byte_level(use_regex=False)]), ignore_merges=True)
    # A token that no merges lead to: only ignore_merges finds it.
    spec = json.loads(tokenizer.to_str())
    spec["model"]["vocab"]["Ġseconds"] = len(spec["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.add_special_tokens([special("<|begin_of_text|>"), special("<|eot_id|>")])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        template("<|begin_of_text|> $A", "<|begin_of_text|> $A <|begin_of_text|> $B",
                 ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))),
    ])
    return tokenizer


def qwen2():
    tokenizer = byte_level_bpe(pre_tokenizers.Sequence([split(QWEN2), byte_level(use_regex=False)]), normalizers.NFC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<|x|>", normalized=True, single_word=True)])
    return tokenizer


def o200k():
    # Older conversions take what lies between the matches away.
    return byte_level_bpe(pre_tokenizers.Sequence([split(O200K, "removed", True), byte_level(use_regex=False)]))


def deepseek():
    return byte_level_bpe(pre_tokenizers.Sequence([split(p) for p in DEEPSEEK] + [byte_level(use_regex=False)]))


def falcon():
    return byte_level_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), byte_level(), pre_tokenizers.Digits(False), split("[0-9][0-9][0-9]")]))


def roberta():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    train_bpe(tokenizer, 430, ["<s>", "<pad>", "</s>", "<unk>"], sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([special("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def sentencepiece_decoder(strip=True):
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(parts + ([decoders.Strip(" ", 1, 0)] if strip else []))


def llama2():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for training alone
    train_bpe(tokenizer, 600, ["<unk>", "<s>", "</s>"] + bytes_as_tokens(), limit=60)
    spec = json.loads(tokenizer.to_str())
    spec["pre_tokenizer"] = None
    # The byte tokens are no added tokens.
    spec["added_tokens"] = spec["added_tokens"][:3]
    # The older spelling of merges, and no type.
    spec["model"]["merges"] = [" ".join(merge) for merge in spec["model"]["merges"]]
    del spec["model"]["type"]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.decoder = sentencepiece_decoder()
    tokenizer.post_processor = template("<s> $A", "<s> $A <s> $B", ("<s>", 1))
    return tokenizer, spec


def gemma():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_previous")
    train_bpe(tokenizer, 560, ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>"] + bytes_as_tokens(), limit=60)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = spec["added_tokens"][:5]
    spec["pre_tokenizer"]["pattern"] = {"String": " "}  # as the real file has it: it never matches
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.decoder = sentencepiece_decoder(False)
    tokenizer.post_processor = template("<bos> $A", "<bos> $A <bos> $B", ("<bos>", 2))
    return tokenizer


def bert(cased=False):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=420, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], limit_alphabet=120, show_progress=False)
    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.post_processor = template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ("[CLS]", 2), ("[SEP]", 3))
    return tokenizer


def bert_cased():
    tokenizer = bert(cased=True)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_tokens([AddedToken("mañana", single_word=True, rstrip=True), AddedToken("Café", lstrip=True)])
    return tokenizer


def charsmap():
    """A small precompiled charsmap: a double array whose every string has its own stretch of units."""
    rules = {"ﬁ": "fi", "\r": " ", "\n": " ", "\t": " ", "\u3000": " ", "\u200b": " ", "e\u0301": "é", "①": "1", "½": "1/2",
             "\u00a0": " ", "\u0085": "", "\ufeff": "", "㌔": "キロ", "Å": "Å", "²": "2", "ª": "a"}
    replacements, values = b"", {}
    for text in sorted(rules):
        values[text.encode()] = len(replacements)
        replacements += rules[text].encode() + b"\0"
    units, used = {0: 0}, {0}

    def place(prefix, index):
        children = sorted({key[len(prefix)] for key in values if key.startswith(prefix) and len(key) > len(prefix)})
        leaf = prefix in values
        labels = ([0] if leaf else []) + children
        base = next(b for b in range(1, 1 << 20) if all(b ^ label not in used for label in labels) and (index ^ b) < 1 << 21)
        used.update(base ^ label for label in labels)
        units[index] = units.get(index, 0) | (index ^ base) << 10 | (0x100 if leaf else 0)
        if leaf:
            units[base] = values[prefix] | 1 << 31
        for label in children:
            units[base ^ label] = label
        for label in children:
            place(prefix + bytes([label]), base ^ label)

    place(b"", 0)
    size = (max(units) | 255) + 1
    trie = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(trie)) + trie + replacements


def unigram(**options):
    tokenizer = Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(vocab_size=420, unk_token="<unk>", show_progress=False, **options)
    return tokenizer, trainer


def t5():
    tokenizer, trainer = unigram(special_tokens=["<pad>", "</s>", "<unk>"])
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(charsmap()), normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = template("$A </s>", "$A </s> $B </s>", ("</s>", 1))
    return tokenizer


def xlnet():
    """Unigram with byte fallback, older flags and a chain of normalizers."""
    tokenizer, trainer = unigram(special_tokens=["<unk>", "<s>", "</s>"] + bytes_as_tokens())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace("``", '"'), normalizers.Replace("''", '"')])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")])
    tokenizer.train_from_iterator(lines(), trainer)
    spec = json.loads(tokenizer.to_str())
    spec["model"]["byte_fallback"] = True
    spec["added_tokens"] = spec["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.decoder = sentencepiece_decoder()
    return tokenizer


def clip():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        split(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "removed", True), byte_level(use_regex=False)])
    train_bpe(tokenizer, 560, ["<unk>"], sorted(pre_tokenizers.ByteLevel.alphabet()), end_of_word_suffix="</w>")
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("</w>", " ")])
    return tokenizer


def subword_bpe():
    """The original byte-pair encoding, of characters, with marks on both ends."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="@@", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    train_bpe(tokenizer, 500, ["<unk>"], limit=100, continuing_subword_prefix="@@", end_of_word_suffix="</w>")
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return tokenizer


def words():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.CharDelimiterSplit(" "), pre_tokenizers.Punctuation("merged_with_previous"),
        pre_tokenizers.Digits(True), pre_tokenizers.UnicodeScripts()])
    tokenizer.train_from_iterator(
        lines(), trainers.WordLevelTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False))
    return tokenizer  # and no decoder


def characters():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.train_from_iterator(
        lines(), trainers.WordLevelTrainer(vocab_size=120, special_tokens=["<pad>", "<unk>"], show_progress=False))
    tokenizer.decoder = decoders.CTC(pad_token="<pad>", word_delimiter_token=" ", cleanup=True)
    return tokenizer


def fixed_length():
    tokenizer = byte_level_bpe(pre_tokenizers.Sequence([pre_tokenizers.FixedLength(3)]), normalizers.ByteLevel(), size=300)
    tokenizer.add_tokens([AddedToken("naïve", normalized=True)])
    return tokenizer


def record(name, tokenizer, spec, texts):
    cases = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        case = {"ids": ids}
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        skipped = tokenizer.decode(ids, skip_special_tokens=True)
        if plain != ids:
            case["plain"] = plain
        if decoded != text:
            case["decoded"] = decoded
        if skipped != decoded:
            case["skipped"] = skipped
        cases.append(case)
    write(f"{name}.json", spec or json.loads(tokenizer.to_str()))
    sweep = checksum(tokenizer.encode(sweep_text(), add_special_tokens=False).ids)
    write(f"{name}.cases.json", {"sweep": sweep, "cases": cases})


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (HERE / name).write_text(text + "\n", encoding="utf-8")


def main():
    HERE.mkdir(exist_ok=True)
    texts = all_texts()
    write("texts.json", texts)
    makers = (gpt2, llama3, qwen2, o200k, deepseek, falcon, roberta, llama2, gemma, bert, bert_cased, t5, xlnet, clip,
              subword_bpe, words, characters, fixed_length)
    for make in makers:
        made = make()
        tokenizer, spec = made if isinstance(made, tuple) else (made, None)
        if spec:  # written as the older files are
            current = json.loads(tokenizer.to_str())
            spec.update({key: current[key] for key in ("decoder", "post_processor")})
        record(make.__name__, tokenizer, spec, texts)
        print(make.__name__, tokenizer.get_vocab_size())


if __name__ == "__main__":
    main()
