"""llama.cpp by way of the shared library in the xllamacpp wheel, and GGUF files of given weights."""
import ctypes
import pathlib
import re

import numpy as np


def interleaved(weight, heads):
    """Rows from halves to pairs, as llama.cpp rotates them."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


class Llama:
    def __init__(self):
        import xllamacpp
        folder = pathlib.Path(xllamacpp.__file__).parent
        self.lib = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))

        # Passed by value; larger than any version's, of which the first members alone are touched.
        class Parameters(ctypes.Structure):
            _fields_ = [("words", ctypes.c_uint32 * 256)]

        class Batch(ctypes.Structure):
            _fields_ = [("count", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)),
                        ("embd", ctypes.c_void_p), ("pos", ctypes.POINTER(ctypes.c_int32)),
                        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
                        ("logits", ctypes.POINTER(ctypes.c_int8))]

        lib, self.Batch = self.lib, Batch
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(lib, name).restype = Parameters
        lib.llama_model_load_from_file.restype = ctypes.c_void_p
        lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Parameters]
        lib.llama_init_from_model.restype = ctypes.c_void_p
        lib.llama_init_from_model.argtypes = [ctypes.c_void_p, Parameters]
        lib.llama_batch_init.restype = Batch
        lib.llama_batch_init.argtypes = [ctypes.c_int32] * 3
        lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]
        lib.llama_get_logits.restype = ctypes.POINTER(ctypes.c_float)
        lib.llama_get_logits.argtypes = [ctypes.c_void_p]
        lib.llama_get_memory.restype = ctypes.c_void_p
        lib.llama_get_memory.argtypes = [ctypes.c_void_p]
        lib.llama_memory_clear.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [
            ctypes.c_void_p]
        lib.llama_set_n_threads.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
        quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self.log = quiet(lambda level, text, data: None)
        lib.llama_log_set(self.log, None)
        lib.llama_backend_init()

    def quantize(self, weight, kind):
        import gguf
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, cols = weight.shape
        weight = np.ascontiguousarray(weight, np.float32)
        out = np.empty(rows * cols // block * size, np.uint8)
        self.lib.ggml_quantize_chunk(int(kind), weight.ctypes.data, out.ctypes.data, 0, rows, cols, None)
        return out.reshape(rows, -1)

    def load(self, path, vocabulary, context, threads):
        """context: tokens of the cache, and the most that one call takes."""
        self.vocabulary = vocabulary
        model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        parameters = self.lib.llama_context_default_params()
        for i in range(3):  # n_ctx, n_batch, n_ubatch
            parameters.words[i] = context
        self.context = self.lib.llama_init_from_model(model, parameters)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context for {path}")
        self.lib.llama_set_n_threads(self.context, threads, threads)

    def forget(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def append(self, ids, start, logits_of):
        """Computes the tokens from position `start` on; logits of the last `logits_of`, [logits_of, vocabulary]."""
        batch = self.lib.llama_batch_init(len(ids), 0, 1)
        batch.count = len(ids)
        for i, id_ in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = id_, start + i, 1, 0
            batch.logits[i] = i >= len(ids) - logits_of
        failed = self.lib.llama_decode(self.context, batch)
        self.lib.llama_batch_free(batch)
        if failed != 0:
            raise RuntimeError("llama_decode failed")
        return np.ctypeslib.as_array(self.lib.llama_get_logits(self.context), (logits_of, self.vocabulary))

    def logits(self, ids):
        self.forget()
        return self.append(ids, 0, len(ids)).copy()


def kind_of(name, mixture, cols, layers, head):
    """The type that llama-quantize gives a weight; K types need rows of whole 256s, else their stand-ins."""
    from gguf import GGMLQuantizationType as T
    if mixture == "Q4_K_M":
        more = False
        if found := re.match(r"blk\.(\d+)\.(attn_v|ffn_down)", name):
            i = int(found[1])
            more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        kind = T.Q6_K if name == head or more else T.Q4_K
    else:
        kind = T.Q6_K if name == head and mixture in ("Q4_0", "Q4_1") else T[mixture]
    if cols % 256 != 0:
        kind = {T.Q4_K: T.Q5_0, T.Q6_K: T.Q8_0}.get(kind, kind)
    return kind


def random_weights(config, seed=0):
    """Of a Llama of this shape, with a head of its own; equal shapes share their numbers."""
    random, arrays = np.random.default_rng(seed), {}

    def array(*shape):
        if shape not in arrays:
            arrays[shape] = random.standard_normal(shape, np.float32) * 0.02 if len(shape) > 1 else np.ones(shape, np.float32)
        return arrays[shape]

    dim, ffn, vocab = config["dim"], config["ffn"], config["vocab"]
    keys = dim // config["heads"] * config["kv_heads"]
    shapes = {"attn_q": (dim, dim), "attn_k": (keys, dim), "attn_v": (keys, dim), "attn_output": (dim, dim),
              "ffn_gate": (ffn, dim), "ffn_up": (ffn, dim), "ffn_down": (dim, ffn), "attn_norm": (dim,), "ffn_norm": (dim,)}
    weights = {"token_embd.weight": array(vocab, dim), "output.weight": array(vocab, dim), "output_norm.weight": array(dim)}
    for layer in range(config["layers"]):
        weights |= {f"blk.{layer}.{name}.weight": array(*shape) for name, shape in shapes.items()}
    return weights


def write_gguf(path, llama, weights, config, mixture, context):
    """Returns the bytes of the weights. config: dim, layers, ffn, heads, kv_heads, theta, eps, vocab."""
    import gguf
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(config["dim"])
    writer.add_block_count(config["layers"])
    writer.add_feed_forward_length(config["ffn"])
    writer.add_head_count(config["heads"])
    writer.add_head_count_kv(config["kv_heads"])
    writer.add_rope_dimension_count(config["dim"] // config["heads"])
    writer.add_rope_freq_base(config["theta"])
    writer.add_layer_norm_rms_eps(config["eps"])
    writer.add_vocab_size(config["vocab"])
    writer.add_tokenizer_model("none")
    bytes_, quantized = 0, {}
    head = "output.weight" if "output.weight" in weights else "token_embd.weight"
    for name, weight in weights.items():
        key = id(weight)
        if name.endswith("attn_q.weight"):
            weight = interleaved(weight, config["heads"])
        elif name.endswith("attn_k.weight"):
            weight = interleaved(weight, config["kv_heads"])
        if weight.ndim == 1 or mixture == "F32":
            data = np.ascontiguousarray(weight, np.float32)
            writer.add_tensor(name, data)
        else:
            kind = kind_of(name, mixture, weight.shape[1], config["layers"], head)
            if (key, kind) not in quantized:
                quantized[key, kind] = llama.quantize(weight, kind)
            data = quantized[key, kind]
            writer.add_tensor(name, data, raw_dtype=kind)
        bytes_ += data.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return bytes_
