#!/usr/bin/env python3
"""Writes perplexity.json: what ONNX Runtime and Hugging Face's tokenizers say of the example model where the tokenizer
puts a token before every text, as those of Llama and Gemma do.

    pip install onnxruntime==1.32.0 tokenizers==0.23.3 numpy==2.4.6
    tests/cli/opening/make_opening.py

Every window begins with the opening, which is not scored; each token of the text is scored once.
"""
import json
import math
import pathlib

import numpy as np
import onnxruntime
import tokenizers

HERE = pathlib.Path(__file__).parent
MODEL = HERE.parents[2] / "examples/storyteller"
OPENING = "<|endoftext|>"
CONTEXT, STRIDE, WINDOWS = 32, 20, 12


def template(opening):
    """The post-processor, as a tokenizer.json spells it."""
    ids = [0] * opening
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": OPENING, "type_id": 0}}] * opening + [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {OPENING: {"id": OPENING, "ids": ids[:1], "tokens": [OPENING]}}}


def logits_of(session, ids):
    """[tokens, vocabulary] of a text without a past."""
    feed = dict(input_ids=np.array([ids]), attention_mask=np.ones((1, len(ids)), np.int64),
                position_ids=np.arange(len(ids))[None])
    for node in session.get_inputs():
        if node.name not in feed:
            feed[node.name] = np.zeros((1, node.shape[1], 0, node.shape[3]), np.float32)
    return session.run(["logits"], feed)[0][0].astype(np.float64)


def perplexity(session, ids, opening, stride):
    room = CONTEXT - opening
    first = opening  # the first token of the text that was not scored yet
    loss = []
    for window in range(WINDOWS):
        begin = opening + window * stride
        inputs = ids[:opening] + ids[begin:begin + room]
        logits = logits_of(session, inputs)
        end = begin + room  # exclusive: the window foretells token `end` too
        if window == 0 and opening == 0:
            first = 1  # nothing foretells it
        for target in range(first, end + 1):
            row = logits[target - begin + opening - 1]
            loss.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[ids[target]])
        first = end + 1
    return dict(opening=opening, stride=stride, scored=len(loss), perplexity=math.exp(np.mean(loss)))


def main():
    session = onnxruntime.InferenceSession(MODEL / "model.onnx")
    text = (MODEL / "heldout.txt").read_text()
    cases = []
    for opening, stride in [(0, CONTEXT), (1, CONTEXT - 1), (1, STRIDE), (2, CONTEXT - 2)]:
        spelling = json.loads((MODEL / "tokenizer.json").read_text())
        spelling["post_processor"] = template(opening)
        ids = tokenizers.Tokenizer.from_str(json.dumps(spelling)).encode(text).ids
        case = perplexity(session, ids, opening, stride)
        cases.append(dict(case, post_processor=template(opening)))
        print(case)
    record = dict(context=CONTEXT, windows=WINDOWS, cases=cases)
    (HERE / "perplexity.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
