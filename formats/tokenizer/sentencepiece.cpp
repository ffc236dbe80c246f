// Builds a tokenizer from a SentencePiece model file.
#include "formats/tokenizer/hints.h"
#include "formats/tokenizer/pipeline.h"
#include "formats/tokenizer/sentencepiece_model.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

using PieceType = sentencepiece::Model::Piece;

// Control pieces are special tokens, but no text contains them.
std::vector<AddedToken> special_tokens(const SentencePieces& pieces) {
  std::vector<AddedToken> tokens;
  for (uint32_t id = 0; id < pieces.types.size(); ++id) {
    if (pieces.types[id] != PieceType::CONTROL && pieces.types[id] != PieceType::UNKNOWN) continue;
    AddedToken token;
    token.id = id;
    token.content = pieces.all.text(id);
    token.special = true;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<std::string> decoder_spellings(const SentencePieces& pieces) {
  std::vector<std::string> spellings;
  for (uint32_t id = 0; id < pieces.types.size(); ++id) {
    const std::string text(pieces.all.text(id));
    switch (pieces.types[id]) {
      case PieceType::CONTROL:
        spellings.emplace_back("c");
        break;
      case PieceType::UNKNOWN:
        spellings.emplace_back("u");
        break;
      case PieceType::BYTE:
        spellings.push_back("b" +
                            std::string(1, static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16))));
        break;
      default:
        spellings.push_back("n" + text);
    }
  }
  return spellings;
}

}  // namespace

std::shared_ptr<Pipeline> load_sentencepiece(std::string_view bytes, const SpecialTokenOptions& options) {
  sentencepiece::Model file;
  if (!file.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || file.pieces_size() == 0) {
    throw_error(ErrorCode::Corrupt, "not a valid SentencePiece model");
  }
  if (file.denormalizer_spec().has_precompiled_charsmap() &&
      !file.denormalizer_spec().precompiled_charsmap().empty()) {
    throw_error(ErrorCode::Unsupported, "SentencePiece model: rules for denormalization are not supported");
  }
  SentencePieces pieces(file);
  auto pipeline = std::make_shared<Pipeline>();
  pipeline->normalizer = make_sentencepiece_normalizer(file.normalizer_spec(), pieces,
                                                       file.trainer_spec().treat_whitespace_as_suffix());
  pipeline->normalizes_raw_bytes = true;
  pipeline->decoder_spellings = decoder_spellings(pieces);
  pipeline->decoder.push_back(
      sentencepiece_stage({.unk_surface = file.trainer_spec().unk_surface(),
                           .drops_first_space = file.normalizer_spec().add_dummy_prefix() ||
                                                file.normalizer_spec().remove_extra_whitespaces(),
                           .drops_all_first_spaces = file.normalizer_spec().remove_extra_whitespaces()}));
  pipeline->added.add(special_tokens(pieces), pieces.all, nullptr,
                      {.match_in_text = false, .keep_ids = true});
  pipeline->model = make_sentencepiece_model(std::move(pieces), file.trainer_spec().model_type());
  frame_texts(*pipeline, file.trainer_spec().bos_id(), file.trainer_spec().eos_id(), options);
  return pipeline;
}

}  // namespace quern::tokenizer
