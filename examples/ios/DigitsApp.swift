// SPDX-License-Identifier: BSD-3-Clause
// In: digits.pte and seven.f32 in the app. Out: the digit of the image, on the screen. CMakeLists.txt compiles the binding
// into the same module, so nothing imports Torchette.
import SwiftUI

@main
struct DigitsApp: App {
  private let message: String

  init() {
    do {
      message = try String(DigitsApp.recognize())
    } catch {
      message = String(describing: error)
    }
  }

  var body: some Scene {
    WindowGroup {
      Text(message).font(.system(size: message.count == 1 ? 96 : 16))
    }
  }

  /// Returns the digit of the image.
  private static func recognize() throws -> Int {
    let bytes = try Data(contentsOf: URL(fileURLWithPath: path("seven", "f32")))
    let pixels = bytes.withUnsafeBytes { Array($0.bindMemory(to: Float.self)) }
    let module = try Module(filePath: path("digits", "pte"))
    let scores = try Tensor<Float>(module.forward(Tensor(pixels, shape: [1, 64]))).scalars()
    return scores.indices.max { scores[$0] < scores[$1] }!
  }

  private static func path(_ name: String, _ suffix: String) throws -> String {
    guard let found = Bundle.main.path(forResource: name, ofType: suffix) else {
      throw CocoaError(.fileNoSuchFile)
    }
    return found
  }
}
