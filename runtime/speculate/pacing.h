// How much to speculate: as much as pays, measured while decoding.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "runtime/speculate/drafter.h"

namespace quern::runtime {

struct PacingOptions {
  // false: every proposal is verified whole, whatever it costs.
  bool adaptive = true;
  int64_t most = 16;  // tokens proposed for a stream and round
  // Share of plain decoding's time that may be lost by trying.
  double tolerance = 0.015;
  // Seconds since any point; empty: the steady clock.
  std::function<double()> clock = {};
};

// Weighs what a proposed token is expected to save against what it costs. A token that is accepted saves the
// time that a token takes otherwise (lambda); that all tokens on the way to it are accepted too has the
// product of their measured rates as its probability P. With the measured time T(rows) of a run the best
// proposal has the most probable n tokens for the n that maximizes lambda * sum P_i - (T(B + n) - T(B)), for
// B streams: the marginal form of Leviathan, Kalman, Matias, Fast Inference from Transformers via Speculative
// Decoding (2023), theorem 3.8.
//
// Every loss against plain decoding is booked. While the account does not hold what a try costs, decoding is
// plain, and earns `tolerance` of its time: so speculation that does not pay costs no more than that, but is
// tried again now and then. Times are clipped, since one stall of the machine says nothing.
class Pacing {
 public:
  // `priors`: of each class, what acceptance() says before anything is known; empty: 0.7.
  Pacing(const PacingOptions& options, int classes, std::vector<double> priors = {});

  enum class Mode : uint8_t {
    Plain,    // propose nothing
    Explore,  // propose a few tokens to see how they fare
    Adapt,    // propose what pays
    All,      // not adaptive: propose as much as allowed
  };
  // `tokens_left`: that a stream may get at most; a short text leaves little time to make up for tries.
  Mode begin_round(int64_t streams, int64_t tokens_left);
  Mode mode() const { return mode_; }
  int64_t most() const;  // tokens to propose for a stream in this round

  // Of a token of this class whose predecessors were accepted.
  double acceptance(int32_t token_class) const;
  // Whether to guess one more token; `reached`: the probability that all before it are accepted, and
  // `depth`, their number.
  bool worth_one_more(double reached, int64_t depth) const;
  // Cuts the proposals down to what is worth being verified.
  void select(std::span<Proposal> proposals) const;

  double now() const { return options_.clock(); }
  // One token guessed for each of so many streams by a run of its own.
  void record_draft_step(int64_t streams, double seconds);
  void record_token(int32_t token_class, bool accepted);

  struct Round {
    int64_t rows = 0;    // tokens computed by the model
    int64_t tokens = 0;  // found
    double draft_seconds = 0;
    double run_seconds = 0;
  };
  void end_round(const Round& round);
  // What a token takes in a plain round; 0 before there was one.
  double plain_token_seconds() const {
    return costs_ == nullptr ? 0 : plain_seconds() / static_cast<double>(streams_);
  }

 private:
  // A clipped moving average.
  struct Average {
    double value = 0;
    int64_t samples = 0;
    void add(double sample, double weight);
    double clipped(double sample) const;
  };
  // Weighted least squares of a line through what more rows cost, older samples counting less.
  struct Line {
    double w = 0, x = 0, y = 0, xx = 0, xy = 0;
    void add(double at, double value, double weight);
    void age(double factor);
    double operator()(double at) const;
  };
  // Of runs for one number of streams.
  struct Costs {
    Average plain;
    Line more;  // seconds beyond a plain run by rows beyond it
  };

  double token_seconds() const;  // lambda
  double plain_seconds() const { return costs_->plain.value; }
  void enter(int64_t streams);

  PacingOptions options_;
  struct Rate {
    double accepted = 0;
    double evaluated = 0;
  };
  std::vector<Rate> rates_;
  std::vector<double> priors_;
  Rate all_;
  std::map<int64_t, Costs> by_streams_;
  Costs* costs_ = nullptr;
  int64_t streams_ = 0;
  Average draft_step_;
  double try_seconds_ = 0;  // that a round with guesses takes beyond a plain one: a moving average
  double token_time_ = 0, token_count_ = 0;  // moving sums
  double account_ = 0;                       // seconds
  bool opened_ = false;
  int64_t since_plain_ = 0, since_speculation_ = 0, idle_drafts_ = 0;
  int64_t most_verified_ = 0;  // for a stream in a round
  Mode mode_ = Mode::Plain;
};

}  // namespace quern::runtime
