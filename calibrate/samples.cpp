#include "calibrate/samples.h"

#include <algorithm>
#include <random>

#include "ir/error.h"

namespace quern::calibrate {

int64_t Samples::tokens() const {
  int64_t count = 0;
  for (const auto& window : windows) count += static_cast<int64_t>(window.size());
  return count;
}

Samples draw_samples(const TokenData& data, const SampleOptions& options) {
  if (options.samples < 1 || options.context < 1) {
    throw_error(ErrorCode::InvalidArgument, "calibration wants at least one sample of one token, not ",
                options.samples, " of ", options.context);
  }
  struct Piece {
    const Document* document;
    int64_t begin;
    int64_t length;
  };
  std::vector<Piece> pieces;
  for (const Document& document : data.documents) {
    const auto length = static_cast<int64_t>(document.ids.size());
    // The rest of a document that fills a window is left out; one that fills none is a short window.
    if (length > 0) pieces.push_back({&document, 0, std::min(length, options.context)});
    const int64_t room = options.context - document.opening;
    if (room < 1) {
      throw_error(ErrorCode::InvalidArgument, "the ", document.opening,
                  " tokens that the tokenizer puts before a text leave no room in samples of ",
                  options.context, "; take longer ones");
    }
    for (int64_t begin = options.context; begin + room <= length; begin += room)
      pieces.push_back({&document, begin, room});
  }
  if (pieces.empty()) {
    throw_error(ErrorCode::BadData, "'", data.source, "' holds no token: there is nothing to calibrate with");
  }
  if (static_cast<int64_t>(pieces.size()) > options.samples) {
    // Fisher and Yates by hand: std::shuffle differs between standard libraries.
    std::mt19937_64 random(static_cast<uint64_t>(options.seed));
    std::vector<size_t> order(pieces.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = 0; i < static_cast<size_t>(options.samples); ++i) {
      std::swap(order[i], order[i + random() % (order.size() - i)]);
    }
    order.resize(static_cast<size_t>(options.samples));
    std::sort(order.begin(), order.end());
    std::vector<Piece> chosen;
    for (const size_t i : order) chosen.push_back(pieces[i]);
    pieces = std::move(chosen);
  }
  Samples samples{.source = data.source, .digest = data.digest, .options = options};
  for (const Piece& piece : pieces) {
    const auto ids = piece.document->ids.begin();
    const int64_t opening = piece.begin == 0 ? 0 : piece.document->opening;
    std::vector<int64_t>& window = samples.windows.emplace_back(ids, ids + opening);
    window.insert(window.end(), ids + piece.begin, ids + piece.begin + piece.length);
  }
  return samples;
}

}  // namespace quern::calibrate
