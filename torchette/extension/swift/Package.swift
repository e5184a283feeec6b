// swift-tools-version:5.7
// SPDX-License-Identifier: BSD-3-Clause
// In: libtorchette, which the flags of `swift build` select (docs/bindings.md). Out: the Swift library Torchette.
import PackageDescription

let package = Package(
  name: "Torchette",
  platforms: [.iOS(.v13), .macOS(.v11)],
  products: [.library(name: "Torchette", targets: ["Torchette"])],
  targets: [
    .systemLibrary(name: "CTorchette"),
    .target(name: "Torchette", dependencies: ["CTorchette"]),
  ]
)
