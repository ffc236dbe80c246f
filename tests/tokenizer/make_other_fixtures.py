#!/usr/bin/env python3
"""Writes fixtures/other/: small tokenizers in the forms that aren't a tokenizer.json, and what their own software makes
of the texts of fixtures/texts.json.

fixtures/other/NAME.model      SentencePiece models
fixtures/other/small.tiktoken  the ranks of fixtures/gpt2.json, as tiktoken writes them
fixtures/other/tok.bin         the model bpe.model as llama2.c's tokenizer.py exports it
fixtures/other/NAME.cases.json per text: ids, and the decoded text where it isn't the text itself
fixtures/other/malformed.json  malformed UTF-8 in hexadecimal, with the ids of unigram.model

Needs `pip install sentencepiece==0.2.3 tiktoken==0.12.0`. Deterministic.
"""
import base64
import io
import json
import pathlib
import struct
import tempfile

import sentencepiece
import tiktoken

import make_fixtures

HERE = pathlib.Path(__file__).parent / "fixtures"
OTHER = HERE / "other"
RULES = {"ﬁ": "fi", "\t": " ", "\n": " ", "\r": "", "\u3000": " ", "\u00a0": " ", "e\u0301": "é", "½": "1/2", "\ufffd": " ", "①": "1"}


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (OTHER / name).write_text(text + "\n", encoding="utf-8")


def train(name, **options):
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
        for source, target in RULES.items():
            code = lambda text: " ".join(f"{ord(c):X}" for c in text)
            rules.write(f"{code(source)}\t{code(target)}\n")
        rules.flush()
        if options.pop("rules", False):
            options["normalization_rule_tsv"] = rules.name
        else:
            options["normalization_rule_name"] = "identity"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(make_fixtures.lines() * 3), model_writer=model, minloglevel=2, num_threads=1,
            hard_vocab_limit=False, **options)
    (OTHER / f"{name}.model").write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def record(name, texts, encode, decode):
    cases = []
    for text in texts:
        ids = encode(text)
        case = {"ids": ids}
        decoded = decode(ids)
        if decoded != text:
            case["decoded"] = decoded
        cases.append(case)
    write(f"{name}.cases.json", cases)


def sentencepiece_fixtures(texts):
    variants = {
        "unigram": dict(model_type="unigram", vocab_size=400, rules=True, character_coverage=0.98),
        "unigram_bytes": dict(model_type="unigram", vocab_size=560, byte_fallback=True, add_dummy_prefix=False,
                              remove_extra_whitespaces=False, user_defined_symbols=["<|x|>", "the", "  "]),
        "bpe": dict(model_type="bpe", vocab_size=600, byte_fallback=True, character_coverage=0.98,
                    remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
        "bpe_symbols": dict(model_type="bpe", vocab_size=420, user_defined_symbols=["ing", "▁and"], rules=True,
                            control_symbols=["<ctl>"]),
        "word": dict(model_type="word", vocab_size=300),
        "char": dict(model_type="char", vocab_size=120, treat_whitespace_as_suffix=True, user_defined_symbols=["ll"]),
    }
    for name, options in variants.items():
        model = train(name, **options)
        record(name, texts, model.encode, model.decode)
    model = sentencepiece.SentencePieceProcessor(model_file=str(OTHER / "unigram.model"))
    malformed = [b"a\xffb", b"\xc3", b"\xe2\x82", b"ab\xe2\x82c", b"\xed\xa0\x80x", b"\xf5\x80\x80\x80", b"\xc0\xafthe", b" \xff "]
    write("malformed.json", [{"hex": text.hex(), "ids": model.encode(text)} for text in malformed])


def llama2c_encode(text, pieces, scores):
    """encode() of llama2.c's run.c, beginning-of-text token included."""
    index = {piece: i for i, piece in enumerate(pieces)}
    tokens = [1]
    if text:
        tokens.append(index[b" "])
    for character in text:
        piece = character.encode()
        tokens += [index[piece]] if piece in index else [byte + 3 for byte in piece]
    while True:
        best, at = -1e10, None
        for i in range(len(tokens) - 1):
            merged = index.get(pieces[tokens[i]] + pieces[tokens[i + 1]])
            if merged is not None and scores[merged] > best:
                best, at, token = scores[merged], i, merged
        if at is None:
            return tokens
        tokens[at : at + 2] = [token]


def llama2c_decode(tokens, pieces):
    """decode() of run.c, of all tokens after the first."""
    out = b""
    for previous, token in zip(tokens, tokens[1:]):
        piece = pieces[token]
        if previous == 1 and piece.startswith(b" "):
            piece = piece[1:]
        if len(piece) == 6 and piece.startswith(b"<0x") and piece.endswith(b">"):
            piece = bytes([int(piece[3:5], 16)])
        out += piece
    return out.decode("utf-8", errors="replace")


def llama2c_fixture(texts):
    model = sentencepiece.SentencePieceProcessor(model_file=str(OTHER / "bpe.model"))
    pieces, scores = [], []
    for i in range(model.vocab_size()):
        piece = model.id_to_piece(i)
        piece = "\n<s>\n" if i == model.bos_id() else "\n</s>\n" if i == model.eos_id() else piece
        pieces.append(piece.replace("▁", " ").encode())
        scores.append(struct.unpack("<f", struct.pack("<f", model.get_score(i)))[0])
    longest = max(map(len, pieces))
    body = b"".join(struct.pack("<fi", score, len(piece)) + piece for piece, score in zip(pieces, scores))
    (OTHER / "tok.bin").write_bytes(struct.pack("<i", longest) + body)
    texts = [text for text in texts if "\0" not in text]
    write("tok.texts.json", texts)
    record("tok", texts, lambda text: llama2c_encode(text, pieces, scores), lambda ids: llama2c_decode(ids, pieces))


def tiktoken_fixture(texts):
    spec = json.loads((HERE / "gpt2.json").read_text(encoding="utf-8"))
    special = {token["content"] for token in spec["added_tokens"]}
    byte_of = {make_byte_char(byte): byte for byte in range(256)}
    ranks = {}
    for token, rank in sorted(spec["model"]["vocab"].items(), key=lambda item: item[1]):
        if token not in special:
            ranks[bytes(byte_of[c] for c in token)] = rank
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
    (OTHER / "small.tiktoken").write_text("\n".join(lines) + "\n")
    encoding = tiktoken.Encoding(
        "small", pat_str=make_fixtures.LLAMA3, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks) + 7})
    record("small", texts, lambda text: encoding.encode(text, allowed_special="all"), encoding.decode)


def make_byte_char(byte):
    stays = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
    return chr(byte) if stays else chr(256 + [b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174)].index(byte))


def main():
    OTHER.mkdir(parents=True, exist_ok=True)
    texts = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    sentencepiece_fixtures(texts)
    llama2c_fixture(texts)
    tiktoken_fixture(texts)


if __name__ == "__main__":
    main()
