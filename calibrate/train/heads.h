// Heads on a frozen model's hidden states: their forms, losses and gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calibrate/train/optimizer.h"

namespace quern::calibrate::train {

// What a head makes of a hidden state before it is projected to the vocabulary. Not thread-safe.
class HeadForm {
 public:
  virtual ~HeadForm() = default;
  // x [rows, width] to y [rows, width]; keeps what backward() needs. x stays valid until then.
  virtual void forward(const float* x, int64_t rows, float* y) = 0;
  // Adds to the parameters' gradients, from that of the loss by y; `dy` is written over.
  virtual void backward(float* dy, int64_t rows) = 0;
  virtual std::vector<Parameter*> parameters() = 0;
};

// Medusa's: x <- x + SiLU(W x + b), once for each block (Cai et al. 2024, section 3.1). Begins as the
// identity: W = 0, b = 0.
class ResidualSilu final : public HeadForm {
 public:
  ResidualSilu(const std::string& name, int64_t width, int64_t blocks);
  void forward(const float* x, int64_t rows, float* y) override;
  void backward(float* dy, int64_t rows) override;
  std::vector<Parameter*> parameters() override;

  struct Block {
    Parameter weight, bias;
    std::vector<float> input, inner;  // [rows, width]; inner: W x + b
  };
  std::vector<Block>& blocks() { return blocks_; }

 private:
  int64_t width_;
  std::vector<Block> blocks_;
  std::vector<float> change_;
};

// One head. Rows of the hidden state `source` of token t are trained to name token t + ahead.
struct Head {
  std::string name;
  std::unique_ptr<HeadForm> form;
  std::shared_ptr<Parameter> projection;      // [vocabulary, width]
  std::shared_ptr<Parameter> bias = nullptr;  // [vocabulary], added to its products; null: none
  bool trains_projection = false;             // and the bias
  int source = 0;
  // The hidden state that the projection makes the teacher's distributions of, which are then learned instead
  // of the text's tokens; -1: none.
  int teacher = -1;
  // The teacher's rows are logits as they are, not a hidden state.
  bool teacher_gives_logits = false;
  int64_t ahead = 1;
  double weight = 1;  // of its loss among all

  std::vector<Parameter*> trained();
};

struct HeadScore {
  double loss = 0;  // cross-entropy in nats, summed
  int64_t rows = 0;
  int64_t correct = 0;  // the likeliest token is the target
  double mean_loss() const { return rows > 0 ? loss / static_cast<double>(rows) : 0; }
  double top1() const { return rows > 0 ? static_cast<double>(correct) / static_cast<double>(rows) : 0; }
  void add(const HeadScore& more);
};

// Rows of logits [rows, vocabulary] against targets; a target of -1 counts nothing. With `scale` != 0 the
// logits become the gradient of scale * loss.
HeadScore cross_entropy(float* logits, int64_t rows, int64_t vocabulary, std::span<const int64_t> targets,
                        double scale);
// Kullback-Leibler divergence from the teacher's distributions [rows, vocabulary] (probabilities, not
// logits), sum p (log p - log q); `correct` counts where both name the same token. The rest as above.
HeadScore divergence(float* logits, int64_t rows, int64_t vocabulary, std::span<const float> teacher,
                     double scale);

// The head's score on states, targets.size() rows of what its form takes; with `scale` != 0 gradients of
// scale * loss are added to its parameters. Logits are made for a few hundred rows at a time. `teacher`: the
// hidden states of the same tokens that Head::teacher means, if the head has one.
HeadScore run_head(Head& head, std::span<const float> states, std::span<const int64_t> targets, double scale,
                   std::span<const float> teacher = {});

}  // namespace quern::calibrate::train
