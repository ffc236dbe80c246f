#include "formats/tokenizer/post_processor.h"

namespace quern::tokenizer {

void PostProcessor::apply(std::vector<int64_t>& ids) const {
  for (const std::vector<Part>& parts : templates_) {
    std::vector<int64_t> result;
    result.reserve(ids.size() + parts.size());
    for (const Part& part : parts) {
      const std::vector<int64_t>& from = part.is_text ? ids : part.ids;
      result.insert(result.end(), from.begin(), from.end());
    }
    ids = std::move(result);
  }
}

}  // namespace quern::tokenizer
