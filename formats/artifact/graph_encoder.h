// Graphs into the manifest's messages.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <unordered_map>

#include "formats/artifact/messages.h"
#include "formats/artifact/writer.h"

namespace quern::artifact {

class GraphEncoder {
 public:
  // Stores bytes in the file and returns the number of the section.
  using SectionSink = std::function<uint32_t(std::span<const std::byte>, const std::string& name)>;

  GraphEncoder(proto::Manifest& manifest, SectionSink add_section, const Writer::ConstantFilter& filter)
      : symbols_(manifest), add_section_(std::move(add_section)), filter_(filter) {}

  void encode(const Graph& graph, proto::Graph& out);

 private:
  void encode_value(const Value& value, proto::Value& out);
  void encode_constant(const Value& value, proto::Constant& out);
  void encode_constant(const Constant& constant, const std::string& name, proto::Constant& out);
  void encode_tensor(const Tensor& tensor, const std::string& name, proto::Tensor& out);
  void encode_node(const Node& node, proto::Node& out);
  void encode_attribute(const std::string& name, const Attribute& value, proto::Attribute& out);

  SymbolWriter symbols_;
  SectionSink add_section_;
  const Writer::ConstantFilter& filter_;
  std::unordered_map<const Value*, uint64_t> ids_;  // of the graphs around, too
  uint64_t next_id_ = 1;
};

}  // namespace quern::artifact
