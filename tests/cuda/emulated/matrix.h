// Matrices of f32 or bf16 for kernels, and numbers to hold them against. The kernels are emulated, or on a
// GPU (LOCKSTEP_KERNELS_ON_GPU): then the memory is managed, which both sides reach.
#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "models/cuda/element.h"

#ifdef LOCKSTEP_KERNELS_ON_GPU
#include "comm/cuda/check.h"
#endif

namespace lockstep::gpu {
namespace {

#ifdef LOCKSTEP_KERNELS_ON_GPU
template <class T>
struct KernelMemory {
  using value_type = T;
  KernelMemory() = default;
  template <class U>
  KernelMemory(const KernelMemory<U>&) {}  // NOLINT: as allocators are
  T* allocate(std::size_t count) {
    void* data = nullptr;
    cuda::check(cudaMallocManaged(&data, count * sizeof(T)), "cudaMallocManaged", 0);
    return static_cast<T*>(data);
  }
  void deallocate(T* data, std::size_t) { cuda::check(cudaFree(data), "cudaFree", 0); }
  template <class U>
  bool operator==(const KernelMemory<U>&) const {
    return true;
  }
};
// The kernels are through: what they wrote may be read.
void finish() { cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", 0); }
#else
template <class T>
using KernelMemory = std::allocator<T>;
void finish() {}
#endif

template <class T>
using Vector = std::vector<T, KernelMemory<T>>;

struct KernelTest : ::testing::Test {
#ifdef LOCKSTEP_KERNELS_ON_GPU
  void SetUp() override {
    std::string why;
    if (cuda::device_count(&why) == 0) GTEST_SKIP() << "no GPU here: " << why;
  }
#endif
};

using Bf16 = __nv_bfloat16;

template <class T>
constexpr Element kElement = sizeof(T) == 4 ? Element::f32 : Element::bf16;
// Of a result near 1: rounded once in its type, after some roundings of f32.
template <class T>
constexpr double kError = sizeof(T) == 4 ? 4e-6 : 1.0 / 256;

double number(float value) { return static_cast<double>(value); }
double number(Bf16 value) { return static_cast<double>(__bfloat162float(value)); }

template <class T>
struct Matrix {
  std::int64_t rows, columns;
  Vector<T> data;
  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), data(static_cast<std::size_t>(r * c)) {}
  double at(std::int64_t r, std::int64_t c) const {
    return number(data[static_cast<std::size_t>(r * columns + c)]);
  }
};

template <class T>
Matrix<T> random_matrix(std::int64_t rows, std::int64_t columns, unsigned seed, float mean = 0) {
  Matrix<T> matrix(rows, columns);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(mean, 1);
  for (T& value : matrix.data) value = T(normal(generator));
  return matrix;
}

template <class T>
void expect_near(double expected, double got, double scale, const char* what, std::int64_t r,
                 std::int64_t c) {
  EXPECT_NEAR(expected, got, kError<T> * (std::abs(expected) + scale)) << what << " at " << r << ", " << c;
}

struct Shape {
  std::int64_t rows, columns;
};

}  // namespace
}  // namespace lockstep::gpu
