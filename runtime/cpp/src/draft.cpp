#include "blockexport/draft.h"

#include <algorithm>
#include <map>
#include <utility>

#include "blockexport/error.h"
#include "blockexport/generate.h"

namespace blockexport {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::size_t kLongestNgram = 3;
constexpr const char* kTokenizer = "tokenizer.json";

class NgramDraft final : public Draft {
 public:
  Ids propose(const Ids& text, std::int64_t count) override {
    const bool goes_on = text.size() >= read_.size() && std::equal(read_.begin(), read_.end(), text.begin());
    if (!goes_on) seen_.clear(), read_.clear();
    for (std::size_t end = std::max<std::size_t>(read_.size(), 1); end < text.size(); ++end) {
      const std::size_t longest = std::min(kLongestNgram, end);
      for (std::size_t length = 1; length <= longest; ++length) seen_[before(text, end, length)] = end;
    }
    read_ = text;
    for (std::size_t length = std::min(kLongestNgram, text.size()); length > 0; --length) {
      const auto found = seen_.find(before(text, text.size(), length));
      if (found == seen_.end()) continue;
      Ids proposed;  // a text that has begun to repeat itself is taken to go on doing so
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        proposed.push_back(text[found->second + i % (text.size() - found->second)]);
      }
      return proposed;
    }
    return {};
  }

 private:
  static Ids before(const Ids& text, std::size_t end, std::size_t length) {
    return {text.begin() + static_cast<std::ptrdiff_t>(end - length), text.begin() + static_cast<std::ptrdiff_t>(end)};
  }

  std::map<Ids, std::size_t> seen_;  // where what follows them begins
  Ids read_;
};

class ModelDraft final : public Draft {
 public:
  ModelDraft(std::unique_ptr<Decoder> decoder, std::int64_t vocab_size)
      : decoder_(std::move(decoder)), vocab_size_(vocab_size) {}

  // Nothing once its cache is full, or for a token that it has no row for.
  Ids propose(const Ids& text, std::int64_t count) override {
    const auto size = static_cast<std::int64_t>(text.size());
    count = std::min(count, decoder_->max_sequence_length() - size + 1);
    const auto differs = std::mismatch(held_.begin(), held_.end(), text.begin(), text.end() - 1).first;
    const auto fed = differs - held_.begin();
    Ids pending(text.begin() + fed, text.end()), proposed;
    if (count < 1 || *std::max_element(pending.begin(), pending.end()) >= decoder_->manifest().vocab_size) return {};
    decoder_->forget_after(fed);
    held_ = text;
    while (static_cast<std::int64_t>(proposed.size()) < count) {
      std::vector<float> logits = feed(*decoder_, pending);
      logits.resize(static_cast<std::size_t>(std::min<std::int64_t>(vocab_size_, decoder_->manifest().vocab_size)));
      proposed.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
      pending = {proposed.back()};
    }
    held_.insert(held_.end(), proposed.begin(), proposed.end() - 1);
    return proposed;
  }

 private:
  std::unique_ptr<Decoder> decoder_;
  std::int64_t vocab_size_;  // of the large model: tables of one tokenizer may be padded to several sizes
  Ids held_;                 // what its cache holds
};

}  // namespace

std::unique_ptr<Draft> ngram_draft() { return std::make_unique<NgramDraft>(); }

std::unique_ptr<Draft> model_draft(const std::filesystem::path& bundle, const Decoder& large,
                                   DecoderOptions options) {
  const Manifest manifest = read_manifest(bundle);
  if (manifest.headless) {
    throw Error("the draft " + bundle.string() + " is headless and has no logits: use another bundle");
  }
  const auto& files = large.manifest().files;
  const auto mine = manifest.files.find(kTokenizer), its = files.find(kTokenizer);
  if (mine == manifest.files.end() || its == files.end() || mine->second.sha256 != its->second.sha256) {
    throw Error("the draft " + bundle.string() + " has another tokenizer.json than the model: use a smaller model of "
                "the same family and tokenizer, or --draft ngram");
  }
  const bool first = options.backend.empty() && !backends().empty();
  if ((first ? backends().front() : options.backend).rfind("onnxruntime", 0) == 0) {
    options.max_sequence_length = std::min(large.max_sequence_length(), manifest.rope_table_rows);
  }
  return std::make_unique<ModelDraft>(open_decoder(bundle, options), large.manifest().vocab_size);
}

}  // namespace blockexport
