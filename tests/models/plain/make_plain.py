"""Makes the ONNX files and records beside this script: tiny random encoders and encoder-decoders as optimum writes them,
and what ONNX Runtime computes with them. They run as plain graphs.

    python -m venv venv && venv/bin/pip install -r ../families/requirements.txt
    venv/bin/python make_plain.py [NAME...]

A record has a list of `calls`, each with `inputs` and `outputs`: an encoder's; of a decoder (`_decoder`: merged under one
If; `_first` and `_next`: a file each) a prompt without a past, and a token with the past of that call.
"""
import json
import pathlib
import sys
import tempfile

import numpy
import onnx
import onnxruntime
import torch
import transformers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "families"))
from make_families import ENCODER, VOCABULARY, randomize, rounded, tidy  # noqa: E402

OPSET = 18
SMALL = dict(vocab_size=VOCABULARY, d_model=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2)
BART = dict(SMALL, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=24, decoder_ffn_dim=24)
DEBERTA = dict(ENCODER, num_hidden_layers=1, intermediate_size=32, relative_attention=True, pos_att_type=["p2c", "c2p"],
               max_relative_positions=16, type_vocab_size=0, position_biased_input=False)
TOWER = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, projection_dim=16)
# name: (configuration class, class, task, arguments)
MODELS = {
    "t5": ("T5Config", "AutoModelForSeq2SeqLM", "text2text-generation-with-past",
           dict(SMALL, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=1, num_heads=2, relative_attention_num_buckets=8,
                relative_attention_max_distance=16, feed_forward_proj="gated-gelu")),
    "bart": ("BartConfig", "AutoModelForSeq2SeqLM", "text2text-generation-with-past", dict(BART, max_position_embeddings=32)),
    "marian": ("MarianConfig", "AutoModelForSeq2SeqLM", "text2text-generation-with-past",
               dict(BART, max_position_embeddings=32, activation_function="swish")),
    "whisper": ("WhisperConfig", "AutoModelForSpeechSeq2Seq", "automatic-speech-recognition-with-past",
                dict(BART, num_mel_bins=8, max_source_positions=20, max_target_positions=32, suppress_tokens=None,
                     begin_suppress_tokens=None)),
    "deberta": ("DebertaConfig", "AutoModelForSequenceClassification", "text-classification", DEBERTA),
    "deberta_v2": ("DebertaV2Config", "AutoModelForSequenceClassification", "text-classification",
                   dict(DEBERTA, share_att_key=True, norm_rel_ebd="layer_norm", position_buckets=8)),
    "albert": ("AlbertConfig", "AutoModelForMaskedLM", "fill-mask",
               dict(ENCODER, embedding_size=16, type_vocab_size=2)),
    "mpnet": ("MPNetConfig", "AutoModel", "feature-extraction", dict(ENCODER)),
    "clip": ("CLIPConfig", "AutoModel", "feature-extraction",
             dict(projection_dim=16, text_config=dict(TOWER, vocab_size=VOCABULARY, max_position_embeddings=16, eos_token_id=63),
                  vision_config=dict(TOWER, image_size=16, patch_size=8))),
}


def export(model, task, folder):
    from optimum.exporters.onnx import onnx_export_from_model
    shapes = dict(nb_max_frames=40) if model.config.model_type == "whisper" else {}
    onnx_export_from_model(model, folder, task=task, opset=OPSET, do_validation=False, no_post_process=False, **shapes)
    return {path.stem: path for path in sorted(pathlib.Path(folder).glob("*.onnx"))}


def named(arrays):
    return {name: dict(shape=list(array.shape), dtype=str(array.dtype), data=rounded(array)) for name, array in arrays.items()}


class Recorder:
    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options)
        self.random = numpy.random.default_rng(7)
        self.calls = []

    def run(self, given):
        """With what `given` has of the inputs, and numbers for the others."""
        feeds = {}
        for each in self.session.get_inputs():
            feeds[each.name] = given[each.name] if each.name in given else self.some(each)
        results = dict(zip([output.name for output in self.session.get_outputs()], self.session.run(None, feeds)))
        self.calls.append(dict(inputs=named(feeds), outputs=named(results)))
        return results

    def some(self, each):
        if each.name == "input_features":
            return self.random.standard_normal((2, each.shape[1], 40)).round(3).astype(numpy.float32)
        mask = numpy.ones((2, 9), numpy.int64)
        mask[1, 6:] = 0
        if each.name == "pixel_values":
            return self.random.standard_normal((2, 3, 16, 16)).round(3).astype(numpy.float32)
        if each.name == "attention_mask":
            return mask
        if each.name == "token_type_ids":
            return numpy.array([[0] * 4 + [1] * 5, [0] * 6 + [1] * 3], numpy.int64)
        assert each.name == "input_ids", each.name
        return self.random.integers(3, VOCABULARY - 1, (2, 9)) * mask + (1 - mask)

    def save(self, name, path):
        target = HERE / f"{name}.onnx"
        onnx.save(onnx.load(path), target)
        tidy(target)
        record = dict(calls=self.calls)
        (HERE / f"{name}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
        print(name, target.stat().st_size, "bytes", flush=True)


def decoder_inputs(session, states, count):
    ids = numpy.random.default_rng(3).integers(3, VOCABULARY, (2, 4))
    mask = numpy.ones((2, states.shape[1]), numpy.int64)
    mask[1, -3:] = 0
    given = dict(input_ids=ids[:, :count], encoder_hidden_states=states, encoder_attention_mask=mask,
                 cache_position=numpy.arange(count))
    for each in session.get_inputs():
        if each.name.startswith("past_key_values"):
            given[each.name] = numpy.zeros([2, each.shape[1], 0, each.shape[3]], numpy.float32)
    return given


def with_past(given, results, count):
    token = numpy.random.default_rng(4).integers(3, VOCABULARY, (2, 1))
    past = {name.replace("present", "past_key_values"): value for name, value in results.items() if name != "logits"}
    return given | past | dict(input_ids=token, cache_position=numpy.array([count]))


def make_seq2seq(name, files):
    encoder = Recorder(files["encoder_model"])
    states = encoder.run({})["last_hidden_state"]
    encoder.save(name + "_encoder", files["encoder_model"])
    merged = Recorder(files["decoder_model_merged"])
    given = decoder_inputs(merged.session, states, 4)
    results = merged.run(given | dict(use_cache_branch=numpy.array([False])))
    merged.run(with_past(given, results, 4) | dict(use_cache_branch=numpy.array([True])))
    merged.save(name + "_decoder", files["decoder_model_merged"])
    if name != "t5":
        return
    first, following = Recorder(files["decoder_model"]), Recorder(files["decoder_with_past_model"])
    results = first.run(given)
    following.run(with_past(given, results, 4))
    first.save(name + "_first", files["decoder_model"])
    following.save(name + "_next", files["decoder_with_past_model"])


def main(names):
    for name in names or MODELS:
        config_class, auto, task, arguments = MODELS[name]
        config = getattr(transformers, config_class)(**arguments)
        config._attn_implementation = "eager"
        auto = getattr(transformers, auto)
        model = (auto.from_config(config) if hasattr(auto, "from_config") else auto(config)).eval()
        randomize(model, sum(map(ord, name)))
        with tempfile.TemporaryDirectory() as folder:
            files = export(model, task, folder)
            if "encoder_model" in files:
                make_seq2seq(name, files)
            else:
                assert len(files) == 1, files
                recorder = Recorder(files["model"])
                recorder.run({})
                recorder.save(name, files["model"])


if __name__ == "__main__":
    main(sys.argv[1:])
