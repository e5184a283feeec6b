// SPDX-License-Identifier: BSD-3-Clause
// In: digits.pte and an image of 8 x 8 floats. Out: its digit and the probability.
import Foundation
import Torchette

@main
struct Digits {
  static func main() throws {
    let bytes = try Data(contentsOf: URL(fileURLWithPath: CommandLine.arguments[2]))
    let picture = bytes.withUnsafeBytes { Array($0.bindMemory(to: Float.self)) }
    let module = try Module(filePath: CommandLine.arguments[1])
    let scores = try Tensor<Float>(module.forward(Tensor(picture, shape: [1, 64]))).scalars()
    let best = scores.indices.max { scores[$0] < scores[$1] }!
    print(best, String(format: "%.4f", scores[best]))
  }
}
