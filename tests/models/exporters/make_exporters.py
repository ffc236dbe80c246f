"""Makes the ONNX files and records beside this script: tiny random models as other exporters than optimum's write
them, and what ONNX Runtime computes with them. The records are those of families/make_families.py.

    python -m venv venv && venv/bin/pip install -r ../families/requirements.txt -r requirements.txt
    venv/bin/python make_exporters.py [NAME...]

`dynamo_NAME`: torch.onnx.export(dynamo=True), with past keys and values as plain inputs; `script_NAME_OPSET`: the same
by dynamo=False. `genai_NAME_FORMAT`: the model builder of onnxruntime-genai. `ort_NAME`: a file of ../families through
ONNX Runtime's transformers optimizer.
"""
import json
import pathlib
import sys
import tempfile

import numpy
import onnx
import torch
import transformers

HERE = pathlib.Path(__file__).parent
FAMILIES = HERE.parent / "families"
sys.path.insert(0, str(FAMILIES))
from make_families import (DECODERS, LLAMA, MOE, Decoder, build, record_decoder, record_encoder, rounded,  # noqa: E402
                           tidy)

# The builder's attention wants heads of a multiple of 16 features.
WIDE = dict(head_dim=16, num_attention_heads=2, num_key_value_heads=1)
YARN = dict(rope_type="yarn", factor=2.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=64,
            truncate=False)
# The builder takes every projection as wide as the vocabulary for the head.
GENAI = {
    "llama": ("LlamaModel", "LlamaConfig", dict(LLAMA) | WIDE),
    "qwen2": ("QwenModel", "Qwen2Config", dict(LLAMA) | dict(num_attention_heads=2, num_key_value_heads=1)),
    "qwen3": ("Qwen3Model", "Qwen3Config", dict(LLAMA) | WIDE),
    "gemma2": ("Gemma2Model", "Gemma2Config",
               dict(dict(LLAMA) | WIDE, sliding_window=5, query_pre_attn_scalar=12, attn_logit_softcapping=5.0,
                    final_logit_softcapping=4.0, hidden_activation="gelu_pytorch_tanh")),
    "gemma": ("GemmaModel", "GemmaConfig", dict(LLAMA) | WIDE),
    # Every sixth layer alone sees all of the text.
    "gemma3": ("Gemma3Model", "Gemma3TextConfig",
               dict(dict(LLAMA) | WIDE, num_hidden_layers=6, intermediate_size=16, sliding_window=5,
                    query_pre_attn_scalar=12, max_position_embeddings=64, rope_local_base_freq=100.0)),
    "phi": ("PhiModel", "PhiConfig", dict(LLAMA, num_attention_heads=1, num_key_value_heads=1,
                                          partial_rotary_factor=0.5, max_position_embeddings=64)),
    "phi3": ("Phi3MiniModel", "Phi3Config", dict(LLAMA, num_attention_heads=2, num_key_value_heads=2)),
    "phi3_long": ("Phi3MiniLongRoPEModel", "Phi3Config",
                  dict(LLAMA, num_attention_heads=2, num_key_value_heads=2, original_max_position_embeddings=12,
                       rope_scaling=dict(type="longrope", short_factor=[1.0 + 0.1 * i for i in range(8)],
                                         long_factor=[1.5 + 0.5 * i for i in range(8)]))),
    "gpt_oss": ("GPTOSSModel", "GptOssConfig",
                dict(dict(MOE) | WIDE, intermediate_size=32, swiglu_limit=7.0, rope_scaling=YARN, num_local_experts=4, sliding_window=5,
                     layer_types=["sliding_attention", "full_attention"])),
}


def save_inline(path, target):
    model = onnx.load(path)
    onnx.save(model, target)
    tidy(target)


def make_genai(name, target):
    import onnx_ir
    from onnxruntime_genai.models import builder
    family, precision = name.rsplit("_", 1)
    class_name, config_class, arguments = GENAI[family]
    model = build(name, config_class, arguments, "AutoModelForCausalLM")
    kind = onnx_ir.DataType.INT4 if precision in ("int4", "qdq4") else onnx_ir.DataType.FLOAT
    options = dict(int4_block_size=16, int4_accuracy_level=1) if kind == onnx_ir.DataType.INT4 else {}
    if precision == "qdq4":
        options["use_qdq"] = True
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder + "/hf")
        config = transformers.AutoConfig.from_pretrained(folder + "/hf")
        made = getattr(builder, class_name)(config, onnx_ir.DataType.FLOAT, kind, "cpu", folder, options)
        made.make_model(folder + "/hf")
        made.save_model(folder)
        save_inline(folder + "/model.onnx", target)
    record = record_decoder(target)
    del record["padded"]  # GroupQueryAttention takes padding on the right alone
    if "long" in name:
        record["beyond"] = record_beyond(target, config.original_max_position_embeddings)
    return record


def record_beyond(path, original):
    """Prompts one token shorter than the length from which on other frequencies serve, as long, and longer."""
    decoder = Decoder(path)
    prompts = []
    for count in (original - 1, original, original + 1, original + 8):
        ids = numpy.random.default_rng(count).integers(3, 64, (1, count))
        logits, past = decoder.run(ids, numpy.ones((1, count), numpy.int64))
        prompts.append(dict(ids=ids[0].tolist(), logits=rounded(logits)))
    return prompts


class WithPast(torch.nn.Module):
    """Past keys and values by position in and out: what a cache object is for the exporter."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, *past):
        cache = transformers.DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        present = []
        for layer in range(len(past) // 2):
            keys, values = result.past_key_values[layer][:2]
            present += [keys, values]
        return (result.logits, *present)


SMALLER = {"gpt2": dict(n_positions=24, n_embd=16, n_head=2), "gemma3": dict(intermediate_size=16)}


def make_script(name, target):
    name, opset = name.rsplit("_", 1)
    return make_torch(name, target, dict(dynamo=False, opset_version=int(opset)))


def make_dynamo(name, target):
    return make_torch(name, target, dict(dynamo=True, opset_version=18))


def make_torch(name, target, options):
    config_class, arguments = DECODERS[name]
    model = build(name, config_class, arguments | SMALLER.get(name, {}), "AutoModelForCausalLM")
    config = model.config
    layers = config.num_hidden_layers
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    past = [torch.randn(2, heads, 3, size) for _ in range(2 * layers)]
    inputs = (torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64), *past)
    names = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    # The exporter cannot follow the vmap by which masks are made.
    from optimum.exporters.onnx.model_patcher import eager_mask_without_vmap
    transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("eager", eager_mask_without_vmap)
    ins = ["input_ids", "attention_mask"] + ["past_key_values." + name for name in names]
    outs = ["logits"] + ["present." + name for name in names]
    if options["dynamo"]:
        auto = torch.export.Dim.AUTO
        options["dynamic_shapes"] = ({0: auto, 1: auto}, {0: auto, 1: auto}, tuple({0: auto, 2: auto} for _ in past))
        torch.onnx.export(WithPast(model).eval(), inputs, input_names=ins, output_names=outs, **options).save(str(target))
    else:
        options["dynamic_axes"] = dict({name: {0: "batch", 2: "past"} for name in ins[2:]},
                                       input_ids={0: "batch", 1: "sequence"}, attention_mask={0: "batch", 1: "total"})
        torch.onnx.export(WithPast(model).eval(), inputs, str(target), input_names=ins, output_names=outs, **options)
    save_inline(target, target)
    record = record_decoder(target)
    if name == "gpt2":
        del record["padded"]  # without position_ids, the places of padding are counted
    return record


# Name: what the optimizer takes the model for. Attention of an encoder; of a decoder, the parts around it.
ORT = {"gpt2": "gpt2", "llama": "gpt2", "bert": "bert", "distilbert": "bert",
       "roberta": "bert", "minilm": "bert", "vit": "vit"}


def make_ort(name, target):
    from onnxruntime.transformers import optimizer
    made = optimizer.optimize_model(str(FAMILIES / f"{name}.onnx"), model_type=ORT[name], num_heads=4, hidden_size=32,
                                    opt_level=0)
    made.save_model_to_file(str(target))
    tidy(target)
    return record_decoder(target) if name in DECODERS else record_encoder(target)


NAMES = ["genai_llama_qdq4", "genai_gemma_fp32", "genai_gemma3_fp32", "genai_phi_fp32", "genai_phi3_fp32",
         "genai_phi3_long_fp32", "genai_qwen3_fp32", "dynamo_gemma3", "dynamo_gpt2", "dynamo_qwen3",
         "script_llama_14", "script_gpt2_13", "script_gemma3_17", "ort_bert", "ort_distilbert",
         "ort_roberta", "ort_minilm", "ort_vit",
         "genai_llama_fp32", "genai_llama_int4", "genai_qwen2_fp32", "genai_qwen3_int4", "genai_gemma2_fp32",
         "genai_gpt_oss_fp32", "genai_gpt_oss_int4", "dynamo_llama", "dynamo_phi3", "ort_gpt2", "ort_llama"]


def main(names):
    for name in names or NAMES:
        tool, rest = name.split("_", 1)
        target = HERE / f"{name}.onnx"
        record = {"genai": make_genai, "dynamo": make_dynamo, "script": make_script,
                  "ort": make_ort}[tool](rest, target)
        (HERE / f"{name}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
        print(name, target.stat().st_size, "bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
