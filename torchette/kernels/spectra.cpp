// SPDX-License-Identifier: BSD-3-Clause
// Orthogonal factorisations: QR by reflections, eigenvalues of symmetric matrices by QL steps on a
// tridiagonal form, of others by QR steps on a Hessenberg form, singular values by Jacobi's rotations of
// columns. Signs of vectors are what these methods give.
#include <cmath>
#include <cstring>

#include "torchette/kernels/matrices.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

constexpr double kEpsilon = 0x1p-52;

Error check_types(const char* what, const char* names, const Tensor& x, const Tensor& a, const Tensor& b) {
  TORCHETTE_CHECK(x.scalar_type() == a.scalar_type() && x.scalar_type() == b.scalar_type(), InvalidType,
                  "%s: %s are of types %d, %d and %d, where one is needed", what, names,
                  static_cast<int>(x.scalar_type()), static_cast<int>(a.scalar_type()),
                  static_cast<int>(b.scalar_type()));
  return Error::Ok;
}

Error scratch(Context& context, const char* what, size_t count, double*& room) {
  room = static_cast<double*>(context.allocate_temp((count + 1) * sizeof(double)));
  TORCHETTE_CHECK(room != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %zu numbers", what,
                  count);
  return Error::Ok;
}

/// The greatest magnitude in matrix `b` of the batch, 1 where all is zero.
Error scale_of(const char* what, const char* argument, size_t b, const double* a, size_t count,
               double& scale) {
  double largest = 0;
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    largest = std::fmax(largest, std::fabs(a[i]));
    finite = finite && std::isfinite(a[i]);
  }
  TORCHETTE_CHECK(finite, InvalidArgument, "%s: %s: matrix %zu of the batch has elements that are not finite",
                  what, argument, b);
  scale = largest > 0 ? largest : 1;
  return Error::Ok;
}

// --- QR

Error geqrf_out(Context& context, const Tensor& self, Tensor& out, Tensor& tau) {
  constexpr const char* kName = "geqrf";
  Batch batch;
  TORCHETTE_TRY(matrices(kName, "self", self, batch));
  TORCHETTE_TRY(check_types(kName, "self, a and tau", self, out, tau));
  const size_t m = batch.rows, n = batch.columns, least = m < n ? m : n;
  TORCHETTE_TRY(resize_result(out, self.sizes(), "a"));
  TORCHETTE_TRY(resize_batch(tau, self, least, 0, 1, "tau"));
  if (self.numel() == 0) return Error::Ok;
  Dense from, to, factors;
  double* work;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  TORCHETTE_TRY(factors.open(context, tau, ScalarType::Double));
  TORCHETTE_TRY(scratch(context, kName, m > n ? m : n, work));
  memmove(to.data<double>(), from.data<double>(), batch.count * batch.size() * sizeof(double));
  const auto width = static_cast<ptrdiff_t>(n);
  for (size_t b = 0; b < batch.count; ++b)
    for (size_t k = 0; k < least; ++k) {
      double* const corner = to.data<double>() + b * m * n + k * n + k;
      const double factor = make_reflection(corner, width, m - k);
      factors.data<double>()[b * least + k] = factor;
      reflect(corner, width, m - k, factor, {corner + 1, width, 1, m - k, n - k - 1}, 0, work);
    }
  TORCHETTE_TRY(factors.finish());
  return to.finish();
}

/// The product of the reflections that geqrf gives and of another matrix.
Error ormqr_out(Context& context, const Tensor& self, const Tensor& tau, const Tensor& other, bool left,
                bool transpose, Tensor& out) {
  constexpr const char* kName = "ormqr";
  Batch of_v, of_c;
  TORCHETTE_TRY(matrices(kName, "self", self, of_v));
  TORCHETTE_TRY(matrices(kName, "input3", other, of_c));
  TORCHETTE_TRY(check_types(kName, "self, input2 and input3", self, tau, other));
  TORCHETTE_TRY(check_types(kName, "self, input3 and out", self, other, out));
  const size_t n = of_v.rows;
  TORCHETTE_CHECK(tau.dim() == self.dim() - 1 && other.dim() == self.dim() && of_v.count == of_c.count &&
                      (left ? of_c.rows : of_c.columns) == n,
                  InvalidArgument,
                  "%s: self has reflections of %zu elements, input3 is a matrix of %zu rows and %zu columns, "
                  "or input2 is not one dimension less",
                  kName, n, of_c.rows, of_c.columns);
  const auto count = static_cast<size_t>(tau.sizes()[static_cast<size_t>(tau.dim()) - 1]);
  TORCHETTE_CHECK(
      count <= of_v.columns && count <= n && static_cast<size_t>(tau.numel()) == of_v.count * count,
      InvalidArgument, "%s: input2 has %zu elements for %zu columns", kName, count, of_v.columns);
  TORCHETTE_TRY(resize_result(out, other.sizes()));
  if (out.numel() == 0) return Error::Ok;
  Dense vectors, factors, from, to;
  double* work;
  TORCHETTE_TRY(vectors.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(factors.read(context, tau, ScalarType::Double));
  TORCHETTE_TRY(from.read(context, other, ScalarType::Double));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  memmove(to.data<double>(), from.data<double>(), of_c.count * of_c.size() * sizeof(double));
  const auto width = static_cast<ptrdiff_t>(of_c.columns);
  Columns c = left ? Columns{to.data<double>(), width, 1, of_c.rows, of_c.columns}
                   : Columns{to.data<double>(), 1, width, of_c.columns, of_c.rows};
  TORCHETTE_TRY(scratch(context, kName, c.m > c.n ? c.m : c.n, work));
  for (size_t b = 0; b < of_c.count; ++b, c.data += of_c.size())
    for (size_t i = 0; i < count; ++i) {
      const size_t k = transpose == left ? i : count - 1 - i;
      reflect(vectors.data<double>() + (b * n + k) * of_v.columns + k, static_cast<ptrdiff_t>(of_v.columns),
              n - k, factors.data<double>()[b * count + k], c, k, work);
    }
  return to.finish();
}

// --- Eigenvalues

/// The symmetric matrix a becomes tridiagonal, with `diagonal` and, from the second element on, `off` it. The
/// rows of `vectors`, where wanted, are those of the orthogonal matrix that does it, transposed. `work` has
/// room for n numbers.
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
    a[k * n + k] = tau;  // which is needed once more
  }
  if (vectors == nullptr) return;
  for (size_t i = 0; i < n * n; ++i) vectors[i] = i % (n + 1) == 0 ? 1 : 0;
  for (size_t k = n > 1 ? n - 1 : 0; k-- > 0;)
    reflect(a + (k + 1) * n + k, width, n - k - 1, a[k * n + k], {vectors, 1, width, n, n}, k + 1, work);
}

/// Eigenvalues of a tridiagonal matrix by implicit QL steps (Golub and van Loan, 8.3), in any order, and
/// eigenvectors as rows of `vectors`, where that is given. False where it does not converge.
bool diagonalize(double* diagonal, double* off, size_t n, double* vectors) {
  for (size_t first = 0; first < n; ++first)
    for (int steps = 0;; ++steps) {
      size_t last = first;  // of the block that has no zeros beside its diagonal
      while (last + 1 < n && !(std::fabs(off[last + 1]) <=
                               kEpsilon * (std::fabs(diagonal[last]) + std::fabs(diagonal[last + 1]))))
        ++last;
      if (last == first) break;
      if (steps == 60) return false;
      // Wilkinson's shift: the eigenvalue of the leading block of two that is nearer to its first element
      const double half = (diagonal[first + 1] - diagonal[first]) / (2 * off[first + 1]);
      double bulge = diagonal[last] - diagonal[first] +
                     off[first + 1] / (half + std::copysign(std::hypot(half, 1), half));
      double sine = 1, cosine = 1, moved = 0;
      size_t i = last;
      for (; i > first; --i) {
        const double f = sine * off[i], b = cosine * off[i], r = std::hypot(f, bulge);
        if (i < last) off[i + 1] = r;
        if (r == 0) {  // the block falls apart here
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
                  "%s: UPLO is neither L nor U", kName);
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
  double *const a = work, *const diagonal = a + n * n, *const off = diagonal + n, *const rest = off + n;
  double* const rows = compute_v ? rest + n : nullptr;
  for (size_t b = 0; b < batch.count; ++b) {
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j <= i; ++j)
        a[i * n + j] = a[j * n + i] = from.data<double>()[b * n * n + (upper ? j * n + i : i * n + j)];
    make_tridiagonal(a, n, diagonal, off, rows, rest);
    TORCHETTE_CHECK(diagonalize(diagonal, off, n, rows), InvalidArgument,
                    "%s: A: matrix %zu of the batch does not converge: are all of its elements finite?",
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

// --- Eigenvalues of matrices that need not be symmetric

struct Complex {
  double re, im;

  Complex operator+(Complex b) const { return {re + b.re, im + b.im}; }
  Complex operator-(Complex b) const { return {re - b.re, im - b.im}; }
  Complex operator*(Complex b) const { return {re * b.re - im * b.im, re * b.im + im * b.re}; }
  Complex operator*(double b) const { return {re * b, im * b}; }
  double size() const { return std::hypot(re, im); }
  /// What is almost zero is taken for `least`: eigenvalues that differ by less cannot be told apart.
  Complex over(Complex b, double least) const {
    const double length = b.size();
    if (!(length > least)) return *this * (1 / least);
    return *this * (1 / length) * Complex{b.re / length, -b.im / length};
  }
};

/// a = z h z^T, with zeros below the first diagonal under the main one; h takes a's place. The rows of `zt`,
/// which is z transposed, start as those of the unit matrix. `work` has room for n numbers.
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

/// Makes a block of two triangular, if its eigenvalues are real.
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

/// Francis' double steps (Golub and van Loan, 7.5): h becomes triangular but for blocks of two on its
/// diagonal, whose eigenvalues are complex. Its elements are at most of the size of 1. False where it does
/// not converge.
bool make_schur(double* h, size_t n, double* zt, double* work) {
  const auto width = static_cast<ptrdiff_t>(n);
  const auto at = [&](size_t i, size_t j) -> double& { return h[i * n + j]; };
  constexpr double kNothing = 1e-140;  // whose square is a number still
  int steps = 0;
  for (size_t end = n; end > 0;) {
    size_t first = end - 1;
    for (; first > 0; --first) {
      const double beside = std::fabs(at(first - 1, first - 1)) + std::fabs(at(first, first));
      if (std::fabs(at(first, first - 1)) <= std::fmax(kEpsilon * beside, kNothing)) {
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
    // The shifts are the eigenvalues of the last block of two; once in a while others, which break a cycle.
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

/// Solves (h - value) x = 0 for x[0 .. top), where the elements from `top` to `end` are known.
void back_substitute(const double* h, size_t n, size_t top, size_t end, Complex value, Complex* x) {
  const auto rest = [&](size_t i, size_t from) {
    Complex sum = {0, 0};
    for (size_t j = from; j < end; ++j) sum = sum - x[j] * h[i * n + j];
    return sum;
  };
  for (size_t i = top; i-- > 0;) {
    const Complex last = rest(i, i + 1), s = Complex{h[i * n + i], 0} - value;
    double largest;
    if (i == 0 || h[i * n + i - 1] == 0) {
      x[i] = last.over(s, kEpsilon);
      largest = x[i].size();
    } else {
      const Complex before = rest(i - 1, i + 1), p = Complex{h[(i - 1) * n + i - 1], 0} - value;
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

/// Eigenvalues and eigenvectors, complex numbers as pairs in a last dimension. Vectors are of length 1 and
/// their largest elements real.
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
      if (top < k) {  // a pair of conjugates, of which this is the one whose imaginary part is positive
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
      const double turn = top < k ? 1 / longest.size() : 0;  // real vectors stay as they are
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

// --- Singular values

/// Turns n rows of `length` elements, and the rows of `turned` with them, until any two are orthogonal
/// (Hestenes' method). `squares` has room for n numbers.
void orthogonalize(double* rows, size_t n, size_t length, double* turned, double* squares) {
  const double small = kEpsilon * static_cast<double>(length);
  for (int sweep = 0; sweep < 60; ++sweep) {
    bool done = true;
    for (size_t i = 0; i < n; ++i) squares[i] = dot(length, rows + i * length, rows + i * length);
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q) {
        const double off = dot(length, rows + p * length, rows + q * length);
        if (!(std::fabs(off) > small * std::sqrt(squares[p]) * std::sqrt(squares[q]))) continue;
        done = false;
        const double half = (squares[q] - squares[p]) / (2 * off);
        const double tangent = std::copysign(1 / (std::fabs(half) + std::hypot(half, 1)), half);
        const double cosine = 1 / std::hypot(tangent, 1), sine = cosine * tangent;
        rotate(length, rows + p * length, rows + q * length, cosine, sine);
        if (turned != nullptr) rotate(n, turned + p * n, turned + q * n, cosine, sine);
        squares[p] = std::fmax(squares[p] - tangent * off, 0);
        squares[q] += tangent * off;
      }
    if (done) break;
  }
}

/// To `have` orthonormal rows adds further ones until there are `n`.
void complete(double* rows, size_t have, size_t n, size_t length) {
  for (; have < n; ++have) {
    // The unit vector that the rows so far contain least of, less what they contain of it.
    size_t best = 0;
    double least = 2;
    for (size_t i = 0; i < length; ++i) {
      double contained = 0;
      for (size_t j = 0; j < have; ++j) contained += rows[j * length + i] * rows[j * length + i];
      if (contained < least) least = contained, best = i;
    }
    double* const row = rows + have * length;
    for (size_t i = 0; i < length; ++i) row[i] = i == best ? 1 : 0;
    for (int pass = 0; pass < 2; ++pass)
      for (size_t j = 0; j < have; ++j)
        add_scaled(length, -dot(length, row, rows + j * length), rows + j * length, 1, row, 1);
    const double norm = std::sqrt(dot(length, row, row));
    for (size_t i = 0; i < length; ++i) row[i] /= norm;
  }
}

Error linalg_svd_out(Context& context, const Tensor& self, bool full_matrices, bool compute_uv,
                     Optional<Span<const char>>, Tensor& u, Tensor& s, Tensor& vh) {
  constexpr const char* kName = "_linalg_svd";
  static constexpr SizesType kNone[1] = {0};
  Batch batch;
  TORCHETTE_TRY(matrices(kName, "A", self, batch));
  TORCHETTE_TRY(check_types(kName, "A, U and Vh", self, u, vh));
  TORCHETTE_TRY(same_type(self, s, "A and S"));
  const size_t m = batch.rows, n = batch.columns;
  const bool tall = m >= n;
  const size_t least = tall ? n : m, length = tall ? m : n, kept = full_matrices ? length : least;
  const size_t u_columns = tall ? kept : m, v_rows = tall ? n : kept;
  TORCHETTE_TRY(resize_batch(s, self, least, 0, 1, "S"));
  TORCHETTE_TRY(compute_uv ? resize_batch(u, self, m, u_columns, 2, "U") : resize_result(u, {kNone, 1}, "U"));
  TORCHETTE_TRY(compute_uv ? resize_batch(vh, self, v_rows, n, 2, "Vh")
                           : resize_result(vh, {kNone, 1}, "Vh"));
  Dense from, left, values, right;
  double* long_rows;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(left.open(context, u, ScalarType::Double));
  TORCHETTE_TRY(values.open(context, s, ScalarType::Double));
  TORCHETTE_TRY(right.open(context, vh, ScalarType::Double));
  TORCHETTE_TRY(scratch(context, kName, kept * length + (compute_uv ? least * least : 0) + least, long_rows));
  double* const squares = long_rows + kept * length;
  double* const short_rows = compute_uv ? squares + least : nullptr;
  for (size_t b = 0; b < batch.count; ++b) {
    const double* const a = from.data<double>() + b * m * n;
    double scale;  // no square overflows, or vanishes
    TORCHETTE_TRY(scale_of(kName, "A", b, a, m * n, scale));
    for (size_t i = 0; i < least; ++i)
      for (size_t j = 0; j < length; ++j)
        long_rows[i * length + j] = (tall ? a[j * n + i] : a[i * n + j]) / scale;
    for (size_t i = 0; compute_uv && i < least * least; ++i) short_rows[i] = i % (least + 1) == 0 ? 1 : 0;
    orthogonalize(long_rows, least, length, short_rows, squares);
    for (size_t i = 0; i < least; ++i)
      squares[i] = dot(length, long_rows + i * length, long_rows + i * length);
    size_t rank = 0;
    for (size_t i = 0; i < least; ++i) {  // in descending order
      size_t most = i;
      for (size_t j = i + 1; j < least; ++j)
        if (squares[j] > squares[most]) most = j;
      const double value = std::sqrt(squares[most]);
      squares[most] = squares[i];
      values.data<double>()[b * least + i] = value * scale;
      if (!compute_uv) continue;
      const auto swap = [&](double* rows, size_t size) {
        Columns{rows, static_cast<ptrdiff_t>(size), 1, least, size}.swap(i, most);
      };
      swap(long_rows, length);
      swap(short_rows, least);
      if (value > 0) ++rank;
      for (size_t j = 0; value > 0 && j < length; ++j) long_rows[i * length + j] /= value;
    }
    if (!compute_uv) continue;
    complete(long_rows, rank, kept, length);
    const auto write = [&](double* to, bool transposed, const double* rows, size_t count, size_t size) {
      for (size_t i = 0; i < count; ++i)
        for (size_t j = 0; j < size; ++j) to[transposed ? j * count + i : i * size + j] = rows[i * size + j];
    };
    write(left.data<double>() + b * m * u_columns, true, tall ? long_rows : short_rows, u_columns, m);
    write(right.data<double>() + b * v_rows * n, false, tall ? short_rows : long_rows, v_rows, n);
  }
  TORCHETTE_TRY(left.finish());
  TORCHETTE_TRY(right.finish());
  return values.finish();
}

}  // namespace

TORCHETTE_KERNELS(spectra,                                                              //
                  TORCHETTE_KERNEL("aten::geqrf.a", geqrf_out),                         //
                  TORCHETTE_KERNEL("aten::ormqr.out", ormqr_out),                       //
                  TORCHETTE_KERNEL("aten::_linalg_eigh.eigenvalues", linalg_eigh_out),  //
                  TORCHETTE_KERNEL("torchette::eig.out", eig_out),                      //
                  TORCHETTE_KERNEL("aten::_linalg_svd.U", linalg_svd_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
