#include "passes/heads/medusa_weights.h"

#include <map>
#include <regex>

#include "formats/safetensors/safetensors.h"
#include "ir/error.h"

namespace quern::passes {
namespace {

constexpr size_t kMostHeads = 64;
constexpr size_t kMostBlocks = 64;

std::string without_prefix(const std::string& name) {
  for (const std::string prefix : {"medusa_heads.", "medusa_head.", "medusa."}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

// What a tensor's name says.
struct Place {
  enum Kind { Weight, Bias, Direct, Projection } kind;
  size_t head;
  size_t layer;  // among the head's parts
};

std::optional<Place> place_of(const std::string& name) {
  static const std::regex kOriginal(R"((\d{1,4})\.(\d{1,4})\.(linear\.weight|linear\.bias|weight))");
  static const std::regex kBlocks(R"(blocks\.(\d{1,4})\.layers\.(\d{1,4})\.(weight|bias))");
  static const std::regex kHeads(R"(lm_heads\.(\d{1,4})\.weight)");
  std::smatch match;
  const auto number = [&](size_t i) { return static_cast<size_t>(std::stoul(match[i].str())); };
  if (std::regex_match(name, match, kOriginal)) {
    const std::string part = match[3];
    const auto kind = part == "weight" ? Place::Direct : part == "linear.bias" ? Place::Bias : Place::Weight;
    return Place{kind, number(1), number(2)};
  }
  if (std::regex_match(name, match, kBlocks)) {
    return Place{match[3] == "bias" ? Place::Bias : Place::Weight, number(1), number(2)};
  }
  if (std::regex_match(name, match, kHeads)) return Place{Place::Projection, number(1), 0};
  return {};
}

// The parts of a head before it is known to be whole.
struct Parts {
  std::map<size_t, Tensor> weights, biases, direct;
  std::optional<Tensor> projection;
};

MedusaHead assemble(size_t number, Parts& parts) {
  MedusaHead head;
  for (size_t i = 0; i < parts.weights.size(); ++i) {
    const auto weight = parts.weights.find(i);
    if (weight == parts.weights.end())
      throw_error(ErrorCode::BadData, "head ", number, " has ", parts.weights.size(),
                  " blocks, but no block ", i);
    const Tensor& w = weight->second;
    if (w.rank() != 2 || w.dim(0) != w.dim(1)) {
      throw_error(ErrorCode::BadData, "block ", i, " of head ", number, " has a weight of shape ",
                  to_string(w.shape()), "; a square matrix was expected");
    }
    MedusaHead::Block block{.weight = w, .bias = {}};
    if (const auto bias = parts.biases.find(i); bias != parts.biases.end()) {
      if (bias->second.shape() != Shape{w.dim(0)}) {
        throw_error(ErrorCode::BadData, "block ", i, " of head ", number, " has a bias of shape ",
                    to_string(bias->second.shape()), " beside a weight of ", to_string(w.shape()));
      }
      block.bias = bias->second;
    }
    head.blocks.push_back(std::move(block));
  }
  head.projection = parts.projection;
  // In the original's files the projection is the part behind the last block.
  if (parts.direct.size() == 1 && parts.direct.begin()->first == head.blocks.size() && !head.projection) {
    head.projection = parts.direct.begin()->second;
  } else if (!parts.direct.empty()) {
    throw_error(ErrorCode::BadData, "head ", number, " has ", head.blocks.size(), " blocks, and '", number,
                ".", parts.direct.begin()->first, ".weight' is not the projection behind them");
  }
  if (head.projection && head.projection->rank() != 2)
    throw_error(ErrorCode::BadData, "the projection of head ", number, " is no matrix");
  return head;
}

void check_floating(const std::string& name, const Tensor& tensor) {
  const DType dtype = tensor.dtype();
  if (dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16) return;
  throw_error(ErrorCode::BadData, "'", name, "' is of ", to_string(dtype), "; heads are f32, f16 or bf16");
}

}  // namespace

std::vector<MedusaHead> read_medusa_heads(const std::filesystem::path& path) {
  return with_context(concat("reading Medusa heads from '", path.string(), "'"), [&] {
    std::map<size_t, Parts> parts;
    for (const auto& [name, tensor] : safetensors::read(path).tensors) {
      const std::optional<Place> place = place_of(without_prefix(name));
      if (!place || place->head >= kMostHeads || place->layer >= kMostBlocks) {
        throw_error(ErrorCode::BadData, "'", name,
                    "' is no part of Medusa heads: such as '0.0.linear.weight', '0.1.weight', or "
                    "'blocks.0.layers.0.weight', 'lm_heads.0.weight'");
      }
      check_floating(name, tensor);
      Parts& head = parts[place->head];
      if (place->kind == Place::Weight) head.weights.emplace(place->layer, tensor);
      if (place->kind == Place::Bias) head.biases.emplace(place->layer, tensor);
      if (place->kind == Place::Direct) head.direct.emplace(place->layer, tensor);
      if (place->kind == Place::Projection) head.projection = tensor;
    }
    if (parts.empty()) throw_error(ErrorCode::BadData, "the file has no tensors");
    std::vector<MedusaHead> heads;
    for (auto& [number, head] : parts) {
      if (number != heads.size()) throw_error(ErrorCode::BadData, "there is no head ", heads.size());
      heads.push_back(assemble(number, head));
    }
    return heads;
  });
}

void write_medusa_heads(const std::filesystem::path& path, const std::vector<MedusaHead>& heads) {
  safetensors::File file;
  for (size_t k = 0; k < heads.size(); ++k) {
    const std::vector<MedusaHead::Block>& blocks = heads[k].blocks;
    for (size_t j = 0; j < blocks.size(); ++j) {
      file.tensors.emplace(concat(k, ".", j, ".linear.weight"), blocks[j].weight);
      if (blocks[j].bias) file.tensors.emplace(concat(k, ".", j, ".linear.bias"), *blocks[j].bias);
    }
    if (heads[k].projection)
      file.tensors.emplace(concat(k, ".", blocks.size(), ".weight"), *heads[k].projection);
  }
  safetensors::write(path, file);
}

}  // namespace quern::passes
