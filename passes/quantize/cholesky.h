// Symmetric positive definite systems, for what quantization needs of them.
#pragma once

#include <span>

#include "calibrate/second_moments.h"

namespace quern::passes {

// Replaces the lower triangle by L with L L^T = the matrix; the upper one is left as it was. False where the
// matrix is not positive definite; its contents are then undefined.
bool cholesky(calibrate::SquareMatrix& matrix);

// Solves L L^T x = b in place, with L as cholesky() leaves it.
void solve(const calibrate::SquareMatrix& lower, std::span<double> b);

// The upper triangle U with U^T U = (L L^T)^-1, as GPTQ wants it; zeros below the diagonal.
calibrate::SquareMatrix inverse_upper(const calibrate::SquareMatrix& lower);

}  // namespace quern::passes
