"""Makes the ONNX files and records beside this script: tiny random models of the families, as the public exporters write
them, and what ONNX Runtime computes with them.

    python -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python make_families.py [NAME...]

A decoder's record (NAME.json) has `prompt`, `prefill` (logits of every position), `step_ids` and `steps` (three tokens
after it, one at a time, with the cache), and `padded`: two prompts of different length side by side, padded on the left,
with the mask and the logits of all positions. An encoder's has `ids`, `mask` and every output.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import numpy
import onnx
import onnxruntime
import torch
import transformers

HERE = pathlib.Path(__file__).parent
OPSET = 18
VOCABULARY = 64
COMMON = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0,
              bos_token_id=1, eos_token_id=2)
LLAMA = dict(COMMON, intermediate_size=48, num_key_value_heads=2, max_position_embeddings=128)
MOE = dict(LLAMA, intermediate_size=16, num_experts_per_tok=2)

# name: (configuration class, its arguments)
DECODERS = {
    "llama": ("LlamaConfig", dict(LLAMA)),
    "llama3": ("LlamaConfig", dict(LLAMA, tie_word_embeddings=True, rope_theta=500000.0,
                                   rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                     high_freq_factor=4.0, original_max_position_embeddings=32))),
    "mistral": ("MistralConfig", dict(LLAMA, head_dim=8, sliding_window=5)),
    "qwen2": ("Qwen2Config", dict(LLAMA)),
    "qwen3": ("Qwen3Config", dict(LLAMA, head_dim=16)),
    "gemma": ("GemmaConfig", dict(LLAMA, head_dim=16)),
    "gemma2": ("Gemma2Config", dict(LLAMA, head_dim=8, sliding_window=5, query_pre_attn_scalar=12,
                                    attn_logit_softcapping=5.0, final_logit_softcapping=4.0)),
    "gemma3": ("Gemma3TextConfig", dict(LLAMA, head_dim=8, sliding_window=5, query_pre_attn_scalar=12,
                                        layer_types=["sliding_attention", "full_attention"])),
    "phi": ("PhiConfig", dict(LLAMA, num_key_value_heads=4, partial_rotary_factor=0.5)),
    "phi3": ("Phi3Config", dict(LLAMA, pad_token_id=0)),
    "phi3_long": ("Phi3Config", dict(LLAMA, original_max_position_embeddings=32,
                                     rope_scaling=dict(type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3],
                                                       long_factor=[1.5, 2.0, 3.0, 4.0]))),
    "gpt2": ("GPT2Config", dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=96)),
    "gpt_neox": ("GPTNeoXConfig", dict(COMMON, intermediate_size=64, rotary_pct=0.5, max_position_embeddings=128)),
    "gptj": ("GPTJConfig", dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=96, rotary_dim=4)),
    "opt": ("OPTConfig", dict(COMMON, ffn_dim=48, max_position_embeddings=96, word_embed_proj_dim=32)),
    "bloom": ("BloomConfig", dict(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)),
    "mpt": ("MptConfig", dict(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, expansion_ratio=2,
                              max_seq_len=96)),
    "falcon": ("FalconConfig", dict(COMMON, alibi=False, multi_query=True, new_decoder_architecture=False)),
    "stablelm": ("StableLmConfig", dict(LLAMA, partial_rotary_factor=0.5, use_qkv_bias=True)),
    "olmo": ("OlmoConfig", dict(LLAMA, clip_qkv=3.0)),
    "olmo2": ("Olmo2Config", dict(LLAMA)),
    "granite": ("GraniteConfig", dict(LLAMA, embedding_multiplier=12.0, attention_multiplier=0.2,
                                      residual_multiplier=0.22, logits_scaling=8.0)),
    "smollm3": ("SmolLM3Config", dict(LLAMA, no_rope_layers=[1, 0], num_hidden_layers=2)),
    "mixtral": ("MixtralConfig", dict(MOE, num_local_experts=4)),
    "qwen2_moe": ("Qwen2MoeConfig", dict(MOE, num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16,
                                         norm_topk_prob=False)),
    "qwen3_moe": ("Qwen3MoeConfig", dict(MOE, head_dim=8, num_experts=4, moe_intermediate_size=16, norm_topk_prob=True)),
    "gpt_oss": ("GptOssConfig", dict(MOE, head_dim=8, num_local_experts=4, sliding_window=5,
                                     layer_types=["sliding_attention", "full_attention"])),
}
ENCODER = dict(COMMON, intermediate_size=48, max_position_embeddings=64, num_labels=3)
ENCODERS = {
    "bert": ("BertConfig", "text-classification", dict(ENCODER)),
    "distilbert": ("DistilBertConfig", "text-classification",
                   dict(vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48, num_labels=3,
                        max_position_embeddings=64)),
    "roberta": ("RobertaConfig", "text-classification", dict(ENCODER, pad_token_id=1, bos_token_id=0)),
    "minilm": ("BertConfig", "feature-extraction", dict(ENCODER)),
    "vit": ("ViTConfig", "image-classification",
            dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16,
                 patch_size=4, num_labels=3)),
}


def randomize(model, seed):
    """Numbers of a size at which every operator matters: norms, biases and tables too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2 and "embed" not in name and "wte" not in name and "wpe" not in name:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            elif parameter.dim() >= 2:
                parameter.copy_(0.5 * noise)
            elif "norm" in name.lower() or "ln_" in name or "layernorm" in name.lower():
                center = 0.0 if name.endswith("bias") or "gemma" in type(model).__name__.lower() else 1.0
                parameter.copy_(center + 0.2 * noise)
            else:
                parameter.copy_(0.1 * noise)


def build(name, config_class, arguments, auto):
    config = getattr(transformers, config_class)(**arguments)
    config._attn_implementation = "eager"
    model = getattr(transformers, auto).from_config(config).eval()
    randomize(model, sum(map(ord, name)))
    return model


def unrolled_experts(self, hidden_states):
    """The sparse block of Mixtral and Qwen2-MoE over all experts, as optimum has it for Qwen3-MoE: a trace of the
    original serves only the experts that its example met."""
    from optimum.exporters.onnx.model_patcher import qwen3_moe_forward_patched
    if not hasattr(self, "norm_topk_prob"):
        self.norm_topk_prob = True
    result, logits = qwen3_moe_forward_patched(self, hidden_states)
    if hasattr(self, "shared_expert"):
        gate = torch.sigmoid(self.shared_expert_gate(hidden_states))
        result = result + gate * self.shared_expert(hidden_states)
    return result, logits


def unknown_to_optimum(model):
    """Configurations of the exporter for families that it has none of."""
    from optimum.exporters.onnx import model_configs
    bases = {"mixtral": model_configs.MistralOnnxConfig, "qwen2_moe": model_configs.Qwen2OnnxConfig}
    base = bases.get(model.config.model_type)
    if base is None:
        return {}
    for module in model.modules():
        if type(module).__name__ in ("MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock"):
            type(module).forward = unrolled_experts
    config = base(model.config, task="text-generation", use_past=True, use_past_in_inputs=True)
    return dict(custom_onnx_configs={"model": config})


def export(model, task, target, opset):
    from optimum.exporters.onnx import onnx_export_from_model
    with tempfile.TemporaryDirectory() as folder:
        onnx_export_from_model(model, folder, task=task, opset=opset, do_validation=False, no_post_process=False,
                               **unknown_to_optimum(model))
        files = sorted(pathlib.Path(folder).glob("*.onnx"))
        assert len(files) == 1, files
        shutil.copy(files[0], target)


class Decoder:
    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options)
        self.inputs = self.session.get_inputs()
        self.outputs = [output.name for output in self.session.get_outputs()]

    def run(self, ids, mask, past=None):
        feeds = {}
        batch, count = ids.shape
        total = mask.shape[1]
        for each in self.inputs:
            if each.name == "input_ids":
                feeds[each.name] = ids
            elif each.name == "attention_mask":
                feeds[each.name] = mask
            elif each.name == "position_ids":
                feeds[each.name] = numpy.maximum(mask.cumsum(1) - 1, 0)[:, total - count:].astype(numpy.int64)
            elif past is not None:
                feeds[each.name] = past[each.name]
            else:
                shape = [batch if i == 0 else d if isinstance(d, int) else 0 for i, d in enumerate(each.shape)]
                feeds[each.name] = numpy.zeros(shape, numpy.float32)
        results = dict(zip(self.outputs, self.session.run(None, feeds)))
        past = {name.replace("present", "past_key_values"): value for name, value in results.items()
                if name != "logits"}
        return results["logits"], past


def rounded(array):
    return json.loads(json.dumps([float(f"{x:.7g}") for x in array.reshape(-1)]))


def record_decoder(path):
    decoder = Decoder(path)
    generator = numpy.random.default_rng(7)
    prompt = generator.integers(3, VOCABULARY, (1, 9))
    mask = numpy.ones((1, 9), numpy.int64)
    logits, past = decoder.run(prompt, mask)
    record = dict(prompt=prompt[0].tolist(), vocabulary=int(logits.shape[-1]), prefill=rounded(logits), step_ids=[],
                  steps=[])
    for _ in range(3):
        token = numpy.array([[logits[0, -1].argmax()]], numpy.int64)
        mask = numpy.ones((1, mask.shape[1] + 1), numpy.int64)
        logits, past = decoder.run(token, mask, past)
        record["step_ids"].append(int(token[0, 0]))
        record["steps"].append(rounded(logits))
    ids = generator.integers(3, VOCABULARY, (2, 7))
    mask = numpy.ones((2, 7), numpy.int64)
    mask[0, :3] = 0
    ids[0, :3] = 0
    logits, past = decoder.run(ids, mask)
    token = generator.integers(3, VOCABULARY, (2, 1))
    after, _ = decoder.run(token, numpy.concatenate([mask, numpy.ones((2, 1), numpy.int64)], 1), past)
    record["padded"] = dict(ids=ids.tolist(), mask=mask.tolist(), logits=rounded(logits), next=token[:, 0].tolist(),
                            next_logits=rounded(after))
    assert numpy.isfinite(record["prefill"]).all()
    return record


def record_encoder(path):
    session = onnxruntime.InferenceSession(str(path))
    generator = numpy.random.default_rng(7)
    feeds = {}
    mask = numpy.ones((2, 9), numpy.int64)
    mask[1, 6:] = 0
    for each in session.get_inputs():
        if each.name == "attention_mask":
            feeds[each.name] = mask
        elif each.name == "token_type_ids":
            feeds[each.name] = numpy.array([[0] * 4 + [1] * 5, [0] * 6 + [1] * 3], numpy.int64)
        elif each.name == "pixel_values":
            feeds[each.name] = numpy.round(generator.standard_normal((2, 3, 16, 16)), 3).astype(numpy.float32)
        else:
            feeds[each.name] = generator.integers(3, VOCABULARY, (2, 9)) * mask + (1 - mask)
    results = session.run(None, feeds)
    return dict(inputs={name: dict(shape=list(value.shape), data=[float(x) for x in value.reshape(-1)])
                        for name, value in feeds.items()},
                outputs={output.name: dict(shape=list(value.shape), data=rounded(value))
                         for output, value in zip(session.get_outputs(), results)})


def tidy(path):
    """Descriptions of where in the exporter's sources a node came from are most of the file."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in list(model.graph.value_info) + list(model.graph.input) + list(model.graph.output):
        del value.metadata_props[:]
    onnx.save(model, path)


def main(names):
    for name in names or list(DECODERS) + list(ENCODERS):
        target = HERE / f"{name}.onnx"
        if name in DECODERS:
            config, arguments = DECODERS[name]
            export(build(name, config, arguments, "AutoModelForCausalLM"), "text-generation-with-past", target, OPSET)
            tidy(target)
            record = record_decoder(target)
            record["config"] = arguments
        else:
            config, task, arguments = ENCODERS[name]
            auto = {"text-classification": "AutoModelForSequenceClassification",
                    "feature-extraction": "AutoModel",
                    "image-classification": "AutoModelForImageClassification"}[task]
            export(build(name, config, arguments, auto), task, target, OPSET)
            tidy(target)
            record = record_encoder(target)
        (HERE / f"{name}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
        print(name, target.stat().st_size, "bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
