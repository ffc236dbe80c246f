#include <algorithm>

#include "calibrate/dataset.h"
#include "formats/file/checksum.h"
#include "formats/npy/npy.h"
#include "formats/npy/npz.h"
#include "formats/onnx/input_sets.h"

namespace quern::calibrate {
namespace {

// Elements of less than a byte cannot be cut at any element; NumPy has none.
Tensor rows_of(const Tensor& array, int64_t first, int64_t count) {
  Shape shape = array.shape();
  const int64_t row_bytes = shape[0] == 0 ? 0 : array.byte_size() / shape[0];
  shape[0] = count;
  const auto owner = std::make_shared<const Tensor>(array);
  return Tensor::view(array.dtype(), std::move(shape), owner, array.bytes() + first * row_bytes,
                      count * row_bytes);
}

}  // namespace

bool is_tensor_file(const std::filesystem::path& path) {
  const std::string extension = path.extension();
  return extension == ".npy" || extension == ".npz" || onnx_format::is_input_sets(path);
}

std::string digest_of_data(const std::filesystem::path& path) {
  return onnx_format::is_input_sets(path) ? onnx_format::digest_of_input_sets(path) : sha256_of_file(path);
}

TensorData TensorData::load(const std::filesystem::path& path, const std::vector<Value*>& inputs,
                            const DatasetOptions& options) {
  TensorData data;
  data.source_ = path;
  if (onnx_format::is_input_sets(path)) {
    onnx_format::InputSets sets = onnx_format::read_input_sets(path, inputs);
    data.arrays_ = std::move(sets.arrays);
    data.digest_ = std::move(sets.digest);
  } else if (path.extension() == ".npz") {
    const npy::Archive archive = npy::Archive::open(path);
    for (const std::string& name : archive.names()) {
      Tensor array = archive.read(name);
      (name == "label" || name == "labels" ? data.labels_ : data.arrays_[name]) = std::move(array);
    }
  } else if (inputs.size() == 1) {
    data.arrays_[inputs.front()->name()] = npy::read(path);
  } else {
    throw_error(ErrorCode::BadData, "'", path.string(), "' is one array, and the model has ", inputs.size(),
                " inputs; give an .npz file with one array for each");
  }
  if (data.digest_.empty()) data.digest_ = sha256_of_file(path);
  if (data.arrays_.empty()) throw_error(ErrorCode::BadData, "'", path.string(), "' holds no arrays");
  data.samples_ = -1;
  const auto agree = [&](const std::string& name, const Tensor& array) {
    if (array.rank() == 0 || array.dtype() == DType::String) {
      throw_error(ErrorCode::BadData, "array '", name, "' of '", path.string(), "' is ",
                  array.rank() == 0 ? "a single number" : "text", "; its first axis must count samples");
    }
    if (data.samples_ >= 0 && array.dim(0) != data.samples_) {
      throw_error(ErrorCode::BadData, "array '", name, "' of '", path.string(), "' has ", array.dim(0),
                  " samples (its first axis), the others have ", data.samples_);
    }
    data.samples_ = array.dim(0);
  };
  for (const auto& [name, array] : data.arrays_) agree(name, array);
  if (data.labelled()) agree("label", data.labels_);
  if (data.labelled() && (data.labels_.rank() != 1 || !is_integer(data.labels_.dtype()))) {
    throw_error(ErrorCode::BadData, "the labels of '", path.string(),
                "' must be whole numbers of one axis, not ", to_string(data.labels_.dtype()), " ",
                to_string(data.labels_.shape()));
  }
  if (data.samples_ == 0) throw_error(ErrorCode::BadData, "'", path.string(), "' holds no samples");
  if (options.samples > 0) data.samples_ = std::min(data.samples_, options.samples);
  return data;
}

std::map<std::string, Tensor> TensorData::slice(int64_t first, int64_t count) const {
  std::map<std::string, Tensor> result;
  for (const auto& [name, array] : arrays_) result[name] = rows_of(array, first, count);
  return result;
}

}  // namespace quern::calibrate
