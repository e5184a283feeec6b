// SPDX-License-Identifier: BSD-3-Clause
// Eigenvalues and eigenvectors: symmetric matrices by QL steps on a tridiagonal form, general matrices by QR
// steps on a Hessenberg form. The signs of the vectors follow from these methods.
#include <cmath>
#include <cstring>

#include "torchette/kernels/scientific/matrices.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// Reduces the symmetric matrix a to tridiagonal form with main diagonal `diagonal` and off-diagonal `off`
/// (elements 1 .. n - 1). If not null, `vectors` receives the transpose of the orthogonal transformation.
/// `work` has room for n elements.
void make_tridiagonal(double* a, size_t n, double* diagonal, double* off, double* vectors, double* work) {
  const auto width = static_cast<ptrdiff_t>(n);
  for (size_t k = 0; k < n; ++k) {
    diagonal[k] = a[k * n + k];
    const size_t m = n - k - 1;
    if (m == 0) break;
    double* const column = a + (k + 1) * n + k;
    const double tau = make_reflection(column, width, m);
    off[k + 1] = *column;
    reflect(column, width, m, tau, {column + 1, width, 1, m, m}, 0, work);
    reflect(column, width, m, tau, {column + 1, 1, width, m, m}, 0, work);
    a[k * n + k] = tau;  // used again below
  }
  if (vectors == nullptr) return;
  for (size_t i = 0; i < n * n; ++i) vectors[i] = i % (n + 1) == 0 ? 1 : 0;
  for (size_t k = n > 1 ? n - 1 : 0; k-- > 0;)
    reflect(a + (k + 1) * n + k, width, n - k - 1, a[k * n + k], {vectors, 1, width, n, n}, k + 1, work);
}

/// Computes the eigenvalues of a tridiagonal matrix by implicit QL steps (Golub and van Loan, 8.3), unsorted,
/// and the eigenvectors as rows of `vectors` if it is not null. Returns false if it does not converge.
bool diagonalize(double* diagonal, double* off, size_t n, double* vectors) {
  for (size_t first = 0; first < n; ++first)
    for (int steps = 0;; ++steps) {
      size_t last = first;  // end of the block without zeros off its diagonal
      while (last + 1 < n && !(std::fabs(off[last + 1]) <=
                               kEpsilon * (std::fabs(diagonal[last]) + std::fabs(diagonal[last + 1]))))
        ++last;
      if (last == first) break;
      if (steps == 60) return false;
      // Wilkinson shift: the eigenvalue of the leading 2x2 block that is nearer to its first element.
      const double half = (diagonal[first + 1] - diagonal[first]) / (2 * off[first + 1]);
      double bulge = diagonal[last] - diagonal[first] +
                     off[first + 1] / (half + std::copysign(std::hypot(half, 1), half));
      double sine = 1, cosine = 1, moved = 0;
      size_t i = last;
      for (; i > first; --i) {
        const double f = sine * off[i], b = cosine * off[i], r = std::hypot(f, bulge);
        if (i < last) off[i + 1] = r;
        if (r == 0) {  // the block splits here
          diagonal[i] -= moved;
          break;
        }
        sine = f / r;
        cosine = bulge / r;
        bulge = diagonal[i] - moved;
        const double t = (diagonal[i - 1] - bulge) * sine + 2 * cosine * b;
        moved = sine * t;
        diagonal[i] = bulge + moved;
        bulge = cosine * t - b;
        if (vectors != nullptr) rotate(n, vectors + (i - 1) * n, vectors + i * n, cosine, sine);
      }
      if (i > first) continue;
      diagonal[first] -= moved;
      off[first + 1] = bulge;
    }
  return true;
}

Error linalg_eigh_out(Context& context, const Tensor& self, Span<const char> uplo, bool compute_v,
                      Tensor& values, Tensor& vectors) {
  constexpr const char* kName = "_linalg_eigh";
  static constexpr SizesType kNone[1] = {0};
  Batch batch;
  TORCHETTE_TRY(square_matrices(kName, "A", self, batch));
  TORCHETTE_TRY(check_types(kName, "A, eigenvalues and eigenvectors", self, values, vectors));
  TORCHETTE_CHECK(uplo.size() > 0 && strchr("LlUu", uplo[0]) != nullptr && uplo[0] != 0, InvalidArgument,
                  "%s: UPLO must be L or U", kName);
  const bool upper = uplo[0] == 'U' || uplo[0] == 'u';
  const size_t n = batch.rows;
  TORCHETTE_TRY(resize_batch(values, self, n, 0, 1, "eigenvalues"));
  TORCHETTE_TRY(compute_v ? resize_result(vectors, self.sizes(), "eigenvectors")
                          : resize_result(vectors, {kNone, 1}, "eigenvectors"));
  if (self.numel() == 0) return Error::Ok;
  Dense from, eigenvalues, eigenvectors;
  double* work;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(eigenvalues.open(context, values, ScalarType::Double));
  TORCHETTE_TRY(eigenvectors.open(context, vectors, ScalarType::Double));
  TORCHETTE_TRY(scratch(context, kName, (compute_v ? 2 * n : n) * n + 3 * n, work));
  double *const a = work, *const diagonal = a + n * n, *const off = diagonal + n, *const residual = off + n;
  double* const rows = compute_v ? residual + n : nullptr;
  for (size_t b = 0; b < batch.count; ++b) {
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j <= i; ++j)
        a[i * n + j] = a[j * n + i] = from.data<double>()[b * n * n + (upper ? j * n + i : i * n + j)];
    make_tridiagonal(a, n, diagonal, off, rows, residual);
    TORCHETTE_CHECK(diagonalize(diagonal, off, n, rows), InvalidArgument,
                    "%s: A: matrix %zu of the batch does not converge; check that all elements are finite",
                    kName, b);
    for (size_t i = 0; i < n; ++i) {  // in ascending order
      size_t least = i;
      for (size_t j = i + 1; j < n; ++j)
        if (diagonal[j] < diagonal[least]) least = j;
      eigenvalues.data<double>()[b * n + i] = diagonal[least];
      diagonal[least] = diagonal[i];
      for (size_t j = 0; compute_v && j < n; ++j) {
        eigenvectors.data<double>()[(b * n + j) * n + i] = rows[least * n + j];
        rows[least * n + j] = rows[i * n + j];
      }
    }
  }
  TORCHETTE_TRY(eigenvectors.finish());
  return eigenvalues.finish();
}

// --- Eigenvalues of general matrices

struct Complex {
  double re, im;

  Complex operator+(Complex b) const { return {re + b.re, im + b.im}; }
  Complex operator-(Complex b) const { return {re - b.re, im - b.im}; }
  Complex operator*(Complex b) const { return {re * b.re - im * b.im, re * b.im + im * b.re}; }
  Complex operator*(double b) const { return {re * b, im * b}; }
  double size() const { return std::hypot(re, im); }
  /// Complex division. Divisors below `least` are replaced by it: eigenvalues that close are
  /// indistinguishable.
  Complex over(Complex b, double least) const {
    const double length = b.size();
    if (!(length > least)) return *this * (1 / least);
    return *this * (1 / length) * Complex{b.re / length, -b.im / length};
  }
};

/// Computes a = z h z^T with upper Hessenberg h, which overwrites a. `zt` is z transposed; the caller
/// initializes it to the identity. `work` has room for n elements.
void make_hessenberg(double* a, size_t n, double* zt, double* work) {
  const auto width = static_cast<ptrdiff_t>(n);
  for (size_t k = 0; k + 2 < n; ++k) {
    const size_t m = n - k - 1;
    double* const column = a + (k + 1) * n + k;
    const double tau = make_reflection(column, width, m);
    reflect(column, width, m, tau, {column + 1, width, 1, m, m}, 0, work);
    reflect(column, width, m, tau, {a + k + 1, 1, width, m, n}, 0, work);
    reflect(column, width, m, tau, {zt, width, 1, n, n}, k + 1, work);
    for (size_t i = 1; i < m; ++i) column[i * n] = 0;
  }
}

/// Makes a 2x2 block triangular if its eigenvalues are real.
void split_pair(double* h, size_t n, size_t i, double* zt) {
  const size_t j = i + 1;
  const double half = (h[i * n + i] - h[j * n + j]) / 2;
  const double square = half * half + h[i * n + j] * h[j * n + i];
  if (square < 0) return;
  // (root, the element below the diagonal) is an eigenvector of the block.
  const double root = half + std::copysign(std::sqrt(square), half), below = h[j * n + i];
  const double length = std::hypot(root, below), cosine = root / length, sine = below / length;
  rotate(n - i, h + i * n + i, h + j * n + i, cosine, -sine);
  for (size_t r = 0; r <= j; ++r) rotate(1, h + r * n + i, h + r * n + j, cosine, -sine);
  rotate(n, zt + i * n, zt + j * n, cosine, -sine);
  h[j * n + i] = 0;
}

/// Francis double steps (Golub and van Loan, 7.5). h becomes quasi-triangular: 2x2 blocks on its diagonal
/// remain for complex eigenvalues. Requires elements with a magnitude of at most 1. Returns false if it does
/// not converge.
bool make_schur(double* h, size_t n, double* zt, double* work) {
  const auto width = static_cast<ptrdiff_t>(n);
  const auto at = [&](size_t i, size_t j) -> double& { return h[i * n + j]; };
  constexpr double kTiny = 1e-140;  // its square is not zero
  int steps = 0;
  for (size_t end = n; end > 0;) {
    size_t first = end - 1;
    for (; first > 0; --first) {
      const double neighbors = std::fabs(at(first - 1, first - 1)) + std::fabs(at(first, first));
      if (std::fabs(at(first, first - 1)) <= std::fmax(kEpsilon * neighbors, kTiny)) {
        at(first, first - 1) = 0;
        break;
      }
    }
    if (first + 2 >= end) {
      if (first + 2 == end) split_pair(h, n, first, zt);
      end = first;
      steps = 0;
      continue;
    }
    if (++steps > 100) return false;
    // The shifts are the eigenvalues of the last 2x2 block. Every tenth step uses other shifts to break
    // cycles.
    const size_t z = end - 1, y = z - 1;
    double trace = at(y, y) + at(z, z), determinant = at(y, y) * at(z, z) - at(y, z) * at(z, y);
    if (steps % 10 == 0) {
      const double s = std::fabs(at(z, y)) + std::fabs(at(y, y - 1));
      trace = 1.5 * s;
      determinant = s * s;
    }
    const size_t f = first;
    double v[3] = {at(f, f) * (at(f, f) - trace) + at(f, f + 1) * at(f + 1, f) + determinant,
                   at(f + 1, f) * (at(f, f) + at(f + 1, f + 1) - trace), at(f + 1, f) * at(f + 2, f + 1)};
    for (size_t k = first; k + 1 < end; ++k) {
      const size_t m = end - k < 3 ? end - k : 3, rows = k + 4 < end ? k + 4 : end;
      if (k > first)
        for (size_t i = 0; i < m; ++i) v[i] = at(k + i, k - 1);
      const double tau = make_reflection(v, 1, m);
      if (k > first)
        for (size_t i = 0; i < m; ++i) at(k + i, k - 1) = i == 0 ? v[0] : 0;
      reflect(v, 1, m, tau, {h + k * n + k, width, 1, m, n - k}, 0, work);
      reflect(v, 1, m, tau, {h + k, 1, width, m, rows}, 0, work);
      reflect(v, 1, m, tau, {zt + k * n, width, 1, m, n}, 0, work);
    }
  }
  return true;
}

/// Solves (h - value) x = 0 for x[0 .. top), given the elements from `top` to `end`.
void back_substitute(const double* h, size_t n, size_t top, size_t end, Complex value, Complex* x) {
  const auto residual = [&](size_t i, size_t from) {
    Complex sum = {0, 0};
    for (size_t j = from; j < end; ++j) sum = sum - x[j] * h[i * n + j];
    return sum;
  };
  for (size_t i = top; i-- > 0;) {
    const Complex last = residual(i, i + 1), s = Complex{h[i * n + i], 0} - value;
    double largest;
    if (i == 0 || h[i * n + i - 1] == 0) {
      x[i] = last.over(s, kEpsilon);
      largest = x[i].size();
    } else {
      const Complex before = residual(i - 1, i + 1), p = Complex{h[(i - 1) * n + i - 1], 0} - value;
      const double q = h[(i - 1) * n + i], r = h[i * n + i - 1];
      const Complex determinant = p * s - Complex{q * r, 0};
      const double least =
          kEpsilon * std::fmax(std::fmax(p.size(), s.size()), std::fmax(std::fabs(q), std::fabs(r)));
      x[i - 1] = (before * s - last * q).over(determinant, least);
      x[i] = (p * last - before * r).over(determinant, least);
      largest = std::fmax(x[i].size(), x[i - 1].size());
      --i;
    }
    if (largest > 1e100)
      for (size_t j = i; j < end; ++j) x[j] = x[j] * (1 / largest);
  }
}

/// Computes eigenvalues and eigenvectors. Complex values are pairs in the last dimension. Vectors have length
/// 1 and a real element of largest magnitude.
Error eig_out(Context& context, const Tensor& self, Tensor& values, Tensor& vectors) {
  constexpr const char* kName = "eig";
  Batch batch;
  TORCHETTE_TRY(square_matrices(kName, "self", self, batch));
  TORCHETTE_TRY(check_types(kName, "self, values and vectors", self, values, vectors));
  const size_t n = batch.rows, rank = static_cast<size_t>(self.dim());
  TORCHETTE_CHECK(rank < kMaxDim, InvalidArgument, "%s: self has %zu dimensions", kName, rank);
  SizesType sizes[kMaxDim];
  for (size_t d = 0; d < rank; ++d) sizes[d] = self.sizes()[d];
  sizes[rank] = 2;
  TORCHETTE_TRY(resize_result(vectors, {sizes, rank + 1}, "vectors"));
  sizes[rank - 1] = 2;
  TORCHETTE_TRY(resize_result(values, {sizes, rank}, "values"));
  if (self.numel() == 0) return Error::Ok;
  Dense from, to_values, to_vectors;
  double* work;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(to_values.open(context, values, ScalarType::Double));
  TORCHETTE_TRY(to_vectors.open(context, vectors, ScalarType::Double));
  TORCHETTE_TRY(scratch(context, kName, 2 * n * n + 4 * n, work));
  double *const h = work, *const zt = h + n * n, *const room = zt + n * n;
  auto* const x = reinterpret_cast<Complex*>(room);
  for (size_t b = 0; b < batch.count; ++b) {
    const double* const a = from.data<double>() + b * n * n;
    double scale;
    TORCHETTE_TRY(scale_of(kName, "self", b, a, n * n, scale));
    for (size_t i = 0; i < n * n; ++i) {
      h[i] = a[i] / scale;
      zt[i] = i % (n + 1) == 0 ? 1 : 0;
    }
    make_hessenberg(h, n, zt, room);
    TORCHETTE_CHECK(make_schur(h, n, zt, room), InvalidArgument,
                    "%s: self: matrix %zu of the batch does not converge", kName, b);
    auto* const value_of = reinterpret_cast<Complex*>(to_values.data<double>()) + b * n;
    auto* const vector_of = reinterpret_cast<Complex*>(to_vectors.data<double>()) + b * n * n;
    for (size_t end = n, top; end > 0; end = top) {
      const size_t k = end - 1;
      top = k > 0 && h[k * n + k - 1] != 0 ? k - 1 : k;
      Complex value = {h[k * n + k], 0};
      x[k] = {1, 0};
      if (top < k) {  // a conjugate pair; this is the value with positive imaginary part
        const double half = (h[top * n + top] - h[k * n + k]) / 2, below = h[k * n + top];
        value = {value.re + half, std::sqrt(std::fabs(half * half + h[top * n + k] * below))};
        x[top] = Complex{half / below, value.im / below};
      }
      back_substitute(h, n, top, end, value, x);
      Complex longest = {0, 0};
      double squares = 0;
      for (size_t i = 0; i < n; ++i) {
        Complex sum = {0, 0};
        for (size_t j = 0; j < end; ++j) sum = sum + x[j] * zt[j * n + i];
        vector_of[i * n + top] = sum;
        squares = std::hypot(squares, sum.size());
        if (sum.size() > longest.size()) longest = sum;
      }
      const double turn = top < k ? 1 / longest.size() : 0;  // real vectors remain unchanged
      const Complex unit = top < k ? Complex{longest.re * turn, -longest.im * turn} : Complex{1, 0};
      for (size_t i = 0; i < n; ++i) {
        const Complex element = vector_of[i * n + top] * unit * (1 / squares);
        vector_of[i * n + top] = element;
        if (top < k) vector_of[i * n + k] = {element.re, -element.im};
      }
      value_of[top] = value * scale;
      if (top < k) value_of[k] = {value.re * scale, -value.im * scale};
    }
  }
  TORCHETTE_TRY(to_vectors.finish());
  return to_values.finish();
}

}  // namespace

TORCHETTE_KERNELS_NARROW(eigen, TORCHETTE_KERNEL("aten::_linalg_eigh.eigenvalues", linalg_eigh_out),
                         TORCHETTE_KERNEL("torchette::eig.out", eig_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
