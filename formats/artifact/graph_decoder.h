// The manifest's messages into graphs.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <unordered_map>

#include "formats/artifact/messages.h"
#include "ir/rewriter.h"

namespace quern::artifact {

class GraphDecoder {
 public:
  // The bytes of a section, checked to lie in the file; `owner` keeps them alive.
  using SectionSource = std::function<std::span<const std::byte>(uint32_t)>;

  GraphDecoder(const proto::Manifest& manifest, SectionSource section, std::shared_ptr<const void> owner)
      : symbols_(manifest), section_(std::move(section)), owner_(std::move(owner)) {}

  // Throws Error{Corrupt} for messages that contradict themselves or one another.
  void decode(const proto::Graph& in, Graph& graph);

 private:
  void decode_node(const proto::Node& in, const proto::Graph& values, Rewriter& rewriter);
  Attribute decode_attribute(const proto::Attribute& in);
  Constant decode_constant(const proto::Constant& in) const;
  Tensor decode_tensor(const proto::Tensor& in) const;
  Value* find(uint64_t id) const;
  void define(uint64_t id, Value* value);

  SymbolReader symbols_;
  SectionSource section_;
  std::shared_ptr<const void> owner_;
  std::unordered_map<uint64_t, Value*> values_;
};

}  // namespace quern::artifact
