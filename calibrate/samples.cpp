#include "calibrate/samples.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "ir/error.h"

namespace quern::calibrate {

namespace {

// Which of `count` things are drawn, ascending. Fisher and Yates by hand: std::shuffle differs between
// standard libraries.
std::vector<size_t> drawn(size_t count, const SampleOptions& options) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto wanted = static_cast<size_t>(options.samples);
  if (count <= wanted) return order;
  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  for (size_t i = 0; i < wanted; ++i) std::swap(order[i], order[i + random() % (order.size() - i)]);
  order.resize(wanted);
  std::sort(order.begin(), order.end());
  return order;
}

void check(const SampleOptions& options) {
  if (options.samples >= 1 && options.context >= 1) return;
  throw_error(ErrorCode::InvalidArgument, "calibration wants at least one sample of one token, not ",
              options.samples, " of ", options.context);
}

}  // namespace

int64_t Samples::longest_window() const {
  size_t longest = 0;
  for (const auto& window : windows) longest = std::max(longest, window.size());
  return static_cast<int64_t>(longest);
}

int64_t Samples::tokens() const {
  int64_t count = static_cast<int64_t>(rows.size());
  for (const auto& window : windows) count += static_cast<int64_t>(window.size());
  return count;
}

Samples draw_samples(const TokenData& data, const SampleOptions& options) {
  check(options);
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
  Samples samples{.source = data.source, .digest = data.digest, .options = options};
  for (const size_t i : drawn(pieces.size(), options)) {
    const Piece& piece = pieces[i];
    const auto ids = piece.document->ids.begin();
    const int64_t opening = piece.begin == 0 ? 0 : piece.document->opening;
    std::vector<int64_t>& window = samples.windows.emplace_back(ids, ids + opening);
    window.insert(window.end(), ids + piece.begin, ids + piece.begin + piece.length);
  }
  return samples;
}

Samples draw_samples(std::shared_ptr<const TensorData> data, const SampleOptions& options) {
  check(options);
  Samples samples{.source = data->source(), .digest = data->digest(), .options = options};
  for (const size_t row : drawn(static_cast<size_t>(data->samples()), options))
    samples.rows.push_back(static_cast<int64_t>(row));
  samples.arrays = std::move(data);
  return samples;
}

}  // namespace quern::calibrate
