#!/usr/bin/env python3
"""Writes unicode_tables.inc: the Unicode properties that Hugging Face `tokenizers` goes by.

Its parts carry tables of different Unicode versions (Oniguruma's for regular expressions, Rust's standard library,
unicode_categories, unicode-normalization), so each table is read off the part that uses it: every code point is put
through that part and the answer recorded. Takes a few minutes; needs
`pip install tokenizers==0.23.3 unicodedata2==18.0.0`.
"""
import pathlib
import sys

import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Cc Cf Co Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
# Scripts that split patterns name; to Oniguruma they are registered under these names (regex.cpp).
SCRIPTS = "Han Hangul Hiragana Katakana".split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL_TEXT = "".join(map(chr, CODE_POINTS))


def to_ranges(codes):
    ranges = []
    for code in codes:
        if ranges and ranges[-1][1] + 1 == code:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges


def write_list(out, declaration, entries, per_line):
    out.append(declaration + " = {")
    out.extend("    " + " ".join(entries[i : i + per_line]) for i in range(0, len(entries), per_line))
    out.append("};")
    out.append("")


def write_ranges(out, comment, name, codes):
    out.append(f"// {comment}")
    entries = [f"{{0x{a:X}, 0x{b:X}}}," for a, b in to_ranges(codes)]
    write_list(out, f"constexpr CodeRange {name}[]", entries, 6)


def matched_by_regex(pattern):
    """The code points that the matches of `pattern` consist of."""
    splitter = pre_tokenizers.Split(Regex(pattern), "removed")
    position = 0
    for _, (begin, end) in splitter.pre_tokenize_str(ALL_TEXT):
        yield from CODE_POINTS[position:begin]
        position = end
    yield from CODE_POINTS[position:]


def codes_where(predicate):
    return [code for code in CODE_POINTS if predicate(chr(code))]


def write_categories(out):
    category_of = {code: "Cs" for code in range(0xD800, 0xE000)}
    for name in CATEGORIES:
        for code in matched_by_regex(r"\p{%s}+" % name):
            category_of[code] = name
    runs = []
    for code in range(0x110000):
        name = category_of.get(code, "Cn")
        if not runs or runs[-1][1] != name:
            runs.append((code, name))
    out.append("// General category (Oniguruma): from this code point to the next entry's.")
    entries = [f"{{0x{code:X}, Category::{name}}}," for code, name in runs]
    write_list(out, "constexpr CategoryRun kCategoryRuns[]", entries, 4)


def write_scripts(out):
    entries = []
    for name in SCRIPTS:
        for a, b in to_ranges(matched_by_regex(r"\p{%s}+" % name)):
            entries.append(f"{{0x{a:X}, 0x{b:X}, Script::{name}}},")
    out.append("// Script (Oniguruma), of the scripts that split patterns name.")
    write_list(out, "constexpr ScriptRange kScriptRanges[]", entries, 3)


def write_properties(out):
    whitespace = pre_tokenizers.Whitespace()
    write_ranges(out, r"\w of Rust's `regex`.", "kWordCharacterRanges",
                 codes_where(lambda c: len(whitespace.pre_tokenize_str("a" + c)) == 1
                             and whitespace.pre_tokenize_str("a" + c)[0][0] == "a" + c))
    punctuation = pre_tokenizers.Punctuation("removed")
    write_ranges(out, "Punctuation, as the pre-tokenizers Punctuation and BertPreTokenizer have it.", "kPunctuationRanges",
                 codes_where(lambda c: not punctuation.pre_tokenize_str(c)))
    digits = pre_tokenizers.Digits(individual_digits=True)
    write_ranges(out, "char::is_numeric of Rust.", "kNumericRanges",
                 codes_where(lambda c: len(digits.pre_tokenize_str(c + c)) == 2))
    cleaner = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    write_ranges(out, "What BertNormalizer's clean_text drops.", "kBertControlRanges",
                 codes_where(lambda c: cleaner.normalize_str(c) == ""))
    stripper = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    write_ranges(out, "Nonspacing marks, as BertNormalizer's strip_accents has them.", "kNonspacingMarkRanges",
                 codes_where(lambda c: stripper.normalize_str(c) == ""))
    marks = normalizers.StripAccents()
    write_ranges(out, "What StripAccents drops.", "kCombiningMarkRanges", codes_where(lambda c: marks.normalize_str(c) == ""))


def write_lowercase(out):
    lower = normalizers.Lowercase()
    # Runs of the same distance, every code point or every second one.
    runs = []
    for code in CODE_POINTS:
        lowered = lower.normalize_str(chr(code))
        if lowered == chr(code):
            continue
        if len(lowered) > 1:
            assert (code, lowered) == (0x130, "i\u0307")  # handled by the code
            continue
        delta = ord(lowered) - code
        if runs and runs[-1][2] == delta:
            first, last, _, step = runs[-1]
            if code - last == (step or code - last) and code - last <= 2:
                runs[-1] = [first, code, delta, code - last]
                continue
        runs.append([code, code, delta, 0])
    entries = [f"{{0x{a:X}, 0x{b:X}, {d}, {max(s, 1)}}}," for a, b, d, s in runs]
    out.append("// Simple lower-case mappings (Rust): first, last, distance, step.")
    write_list(out, "constexpr LowerRun kLowerRuns[]", entries, 5)


def write_unicode_scripts(out):
    """Equivalence classes of the pre-tokenizer UnicodeScripts: 0 joins any script."""
    scripts = pre_tokenizers.UnicodeScripts()

    def joins(a, b):
        return len(scripts.pre_tokenize_str(a + b)) == 1

    representatives = ["a", "\u0431"]
    class_of = []
    latest = 0
    for code in CODE_POINTS:
        c = chr(code)
        if joins("a", c) and joins("\u0431", c):
            class_of.append((code, 0))
            continue
        order = [latest] + [i for i in range(len(representatives)) if i != latest]
        latest = next((i for i in order if joins(representatives[i], c)), len(representatives))
        if latest == len(representatives):
            representatives.append(c)
        class_of.append((code, latest + 1))
    runs = []
    for code, number in class_of:
        if not runs or runs[-1][1] != number:
            runs.append((code, number))
    assert len(representatives) < 255
    out.append("// Script classes of the pre-tokenizer UnicodeScripts, from this code point to the next entry's; 0 joins all.")
    write_list(out, "constexpr ScriptClassRun kScriptClassRuns[]", [f"{{0x{c:X}, {n}}}," for c, n in runs], 8)


def write_unnormalized(out):
    """Code points that newer versions of Unicode normalize and `tokenizers` leaves alone."""
    own = {form: getattr(normalizers, form)() for form in ("NFC", "NFD", "NFKC", "NFKD")}

    def differs(text):
        return any(n.normalize_str(text) != unicodedata2.normalize(form, text) for form, n in own.items())

    def is_later(c):
        if differs(c):
            return True
        marks = "\u0334\u0345\u0301\u0327" if unicodedata2.combining(c) else ""
        return any(differs("a" + pair) for m in marks for pair in (m + c, c + m))

    later = set(codes_where(is_later))
    for code in CODE_POINTS:
        parts = unicodedata2.decomposition(chr(code)).split()
        if len(parts) == 2 and parts[0][0] != "<":
            pair = "".join(chr(int(p, 16)) for p in parts)
            if differs(pair):
                later.update(ord(c) for c in pair if ord(c) > 0x10000)
    write_ranges(out, "Code points with a normalization that is newer than the one that `tokenizers` has.",
                 "kUnnormalizedRanges", sorted(later))


def main():
    out = ["// Generated by make_unicode_tables.py; do not edit.", ""]
    for part in (write_categories, write_scripts, write_properties, write_lowercase, write_unicode_scripts,
                 write_unnormalized):
        part(out)
        print(part.__name__, len(out), flush=True)
    target = pathlib.Path(__file__).with_name("unicode_tables.inc")
    target.write_text("\n".join(out[:-1]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
