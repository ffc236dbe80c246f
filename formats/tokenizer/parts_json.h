// Builds the parts of a tokenizer from their objects in a tokenizer.json. All throw Error{InvalidModel} or
// Error{Unsupported}, or nlohmann's exceptions for a member of another type than expected.
#pragma once

#include <memory>
#include <vector>

#include "formats/tokenizer/decoder.h"
#include "formats/tokenizer/json_reader.h"
#include "formats/tokenizer/model.h"
#include "formats/tokenizer/normalizer.h"
#include "formats/tokenizer/post_processor.h"
#include "formats/tokenizer/pre_tokenizer.h"

namespace quern::tokenizer {

std::unique_ptr<Normalizer> read_normalizer(const Json& json);
std::unique_ptr<PreTokenizer> read_pre_tokenizer(const Json& json);
// Uses the tables up.
std::unique_ptr<Model> read_model(const Json& json, ModelTables& tables);
PostProcessor read_post_processor(const Json& json);
std::vector<StageFactory> read_decoder(const Json& json);

// The object {"String": ...} or {"Regex": ...} of `json`.
std::unique_ptr<Pattern> read_pattern(const Json& json, std::string_view where);
// Metaspace's parameters, as pre-tokenizer and decoder spell them.
MetaspaceOptions read_metaspace(const Json& json);

}  // namespace quern::tokenizer
