// Between the manifest's messages and quern's own types, both ways.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "artifact.pb.h"
#include "ir/dim.h"
#include "ir/graph.h"
#include "ir/packed_tensor.h"
#include "ir/quantized_tensor.h"

namespace quern::artifact {

proto::ElementType encode_dtype(DType dtype);
// Throws Error{Unsupported} for a number that this version does not know.
DType decode_dtype(uint32_t number);

proto::Scheme encode_scheme(const QuantScheme& scheme);
QuantScheme decode_scheme(const proto::Scheme& scheme);

// Without the section.
proto::Packed encode_spec(const PackedSpec& spec);
PackedSpec decode_spec(const proto::Packed& packed);

// Symbols by number. A dimension without a name ("?7") is numbered like others, but has no name in the file,
// since that depends on what else the process has done.
class SymbolWriter {
 public:
  explicit SymbolWriter(proto::Manifest& manifest) : manifest_(manifest) {}
  proto::Type encode(const ValueType& type);

 private:
  void encode(const Dim& dim, proto::Dim& out);
  uint32_t number(const std::string& symbol);

  proto::Manifest& manifest_;
  std::map<std::string, uint32_t> numbers_;
};

class SymbolReader {
 public:
  explicit SymbolReader(const proto::Manifest& manifest);
  // Throws Error{Corrupt} on symbols that are not there and on absurdly long dimensions.
  ValueType decode(const proto::Type& type) const;

 private:
  Dim decode(const proto::Dim& dim) const;

  std::vector<Dim> symbols_;
};

}  // namespace quern::artifact
