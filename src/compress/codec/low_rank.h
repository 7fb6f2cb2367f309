// Products of a matrix with few vectors, in f32, each in an order that the sizes alone decide: the same bits
// on every machine, on any thread. A matrix is rows × columns in the order of its memory; `rank` vectors lie
// one behind the other.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::compress {

struct Matrix {
  const float* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
};

// out[c][i] = Σ_j m[i][j] × q[c][j].
void times(const Matrix& m, std::span<const float> q, std::size_t rank, std::span<float> out);
// out[c][j] = Σ_i m[i][j] × p[c][i].
void transposed_times(const Matrix& m, std::span<const float> p, std::size_t rank, std::span<float> out);
// m[i][j] = Σ_c p[c][i] × q[c][j]; or that added.
void expand(std::span<const float> p, std::span<const float> q, std::size_t rank, std::span<float> m,
            std::size_t columns);
void expand_add(std::span<const float> p, std::span<const float> q, std::size_t rank, std::span<float> m,
                std::size_t columns);

// Gram-Schmidt (modified): the vectors become orthonormal, one after the other. One that is no more than 1e-6
// of what it was once those before it are taken off becomes zero.
void orthonormalise(std::span<float> p, std::size_t rank);

}  // namespace lockstep::compress
