// SPDX-License-Identifier: BSD-3-Clause
// Runs the methods of a .pte file with tensors and scalars. A wrapper of the C interface: a failed call throws the
// runtime's error, and so does a call on a closed module.
import CTorchette
import Foundation

private let maxDim = 16

/// An error of the runtime: its code, its name and the log lines of the failed call.
public struct TorchetteError: Error, CustomStringConvertible {
  public let code: UInt32
  public let name: String
  public let message: String

  public var description: String { message.isEmpty ? name : "\(name): \(message)" }

  static func invalidArgument(_ message: String) -> TorchetteError {
    TorchetteError(code: 0x12, name: "InvalidArgument", message: message)
  }
}

private func check(_ code: UInt32) throws {
  if code == 0 { return }
  let name = String(cString: torchette_error_name(code))
  throw TorchetteError(code: code, name: name, message: String(cString: torchette_last_error()))
}

/// The dtype of a tensor, with torch's codes.
public enum DataType: Int32 {
  case byte = 0
  case char = 1
  case short = 2
  case int = 3
  case long = 4
  case half = 5
  case float = 6
  case double = 7
  case bool = 11
  case bfloat16 = 15
  case uint16 = 27
  case uint32 = 28
  case uint64 = 29

  public var size: Int {
    switch self {
    case .byte, .char, .bool: return 1
    case .short, .half, .bfloat16, .uint16: return 2
    case .int, .float, .uint32: return 4
    case .long, .double, .uint64: return 8
    }
  }
}

/// A Swift type that is an element type of tensors.
public protocol Scalar { static var dataType: DataType { get } }
extension UInt8: Scalar { public static var dataType: DataType { .byte } }
extension Int8: Scalar { public static var dataType: DataType { .char } }
extension Int16: Scalar { public static var dataType: DataType { .short } }
extension Int32: Scalar { public static var dataType: DataType { .int } }
extension Int64: Scalar { public static var dataType: DataType { .long } }
extension Float: Scalar { public static var dataType: DataType { .float } }
extension Double: Scalar { public static var dataType: DataType { .double } }
extension UInt16: Scalar { public static var dataType: DataType { .uint16 } }
extension UInt32: Scalar { public static var dataType: DataType { .uint32 } }
extension UInt64: Scalar { public static var dataType: DataType { .uint64 } }

/// A tensor with elements in row-major order. It owns its memory, which the runtime reads in place.
public final class AnyTensor {
  public let dataType: DataType
  public let shape: [Int]
  public let byteCount: Int
  let memory: UnsafeMutableRawBufferPointer

  /// Creates a tensor of zeros. Throws InvalidArgument if a size is negative or if there are more than 16 dimensions.
  public init(shape: [Int], dataType: DataType) throws {
    var bytes = dataType.size
    for size in shape {
      let (product, overflow) = bytes.multipliedReportingOverflow(by: size)
      if size < 0 || overflow { throw TorchetteError.invalidArgument("a tensor cannot have the sizes \(shape)") }
      bytes = product
    }
    if shape.count > maxDim {
      throw TorchetteError.invalidArgument("a tensor has \(shape.count) dimensions, at most \(maxDim) are supported")
    }
    self.dataType = dataType
    self.shape = shape
    memory = UnsafeMutableRawBufferPointer.allocate(byteCount: max(bytes, 1), alignment: 64)
    memory.initializeMemory(as: UInt8.self, repeating: 0)
    byteCount = bytes
  }

  public var count: Int { byteCount / dataType.size }

  /// Calls `body` with the elements' memory. The pointer is valid only within `body`.
  public func withUnsafeBytes<R>(_ body: (UnsafeRawBufferPointer) throws -> R) rethrows -> R {
    try body(UnsafeRawBufferPointer(rebasing: memory[0..<byteCount]))
  }

  public func withUnsafeMutableBytes<R>(_ body: (UnsafeMutableRawBufferPointer) throws -> R) rethrows -> R {
    try body(UnsafeMutableRawBufferPointer(rebasing: memory[0..<byteCount]))
  }

  deinit { memory.deallocate() }
}

/// A tensor with elements of a Swift type.
public struct Tensor<T: Scalar> {
  public let anyTensor: AnyTensor

  /// Creates a tensor from a copy of elements in row-major order. Throws InvalidArgument if their number does not match
  /// `shape`.
  public init(_ scalars: [T], shape: [Int]) throws {
    anyTensor = try AnyTensor(shape: shape, dataType: T.dataType)
    if anyTensor.count != scalars.count {
      throw TorchetteError.invalidArgument("\(scalars.count) elements do not match a tensor of shape \(shape)")
    }
    scalars.withUnsafeBytes { from in anyTensor.withUnsafeMutableBytes { $0.copyMemory(from: from) } }
  }

  /// Wraps a tensor. Throws InvalidArgument if its dtype is not that of `T`.
  public init(_ tensor: AnyTensor) throws {
    if tensor.dataType != T.dataType {
      throw TorchetteError.invalidArgument("the tensor has dtype \(tensor.dataType), requested \(T.dataType)")
    }
    anyTensor = tensor
  }

  /// Wraps the first output of a method. Throws InvalidArgument if it is not a tensor of `T`.
  public init(_ values: [Value]) throws {
    guard case .tensor(let tensor)? = values.first else {
      throw TorchetteError.invalidArgument("the first value is not a tensor")
    }
    try self.init(tensor)
  }

  public var shape: [Int] { anyTensor.shape }
  public var count: Int { anyTensor.count }

  /// Returns a copy of the elements.
  public func scalars() -> [T] { anyTensor.withUnsafeBytes { Array($0.bindMemory(to: T.self)) } }
}

/// An input or output of a method. `none` as an input means the value that the export has fixed.
public enum Value {
  case none
  case tensor(AnyTensor)
  case integer(Int64)
  case double(Double)
  case boolean(Bool)
  case other(Int32)

  fileprivate var raw: torchette_value_t {
    var value = torchette_value_t()
    switch self {
    case .none: break
    case .tensor(let tensor):
      value.kind = 1
      value.tensor.data = tensor.memory.baseAddress
      value.tensor.nbytes = tensor.byteCount
      value.tensor.dtype = tensor.dataType.rawValue
      value.tensor.dim = Int32(tensor.shape.count)
      withUnsafeMutableBytes(of: &value.tensor.sizes) { sizes in
        for (d, size) in tensor.shape.enumerated() {
          sizes.storeBytes(of: Int64(size), toByteOffset: d * 8, as: Int64.self)
        }
      }
    case .double(let number):
      value.kind = 3
      value.number = number
    case .integer(let number):
      value.kind = 4
      value.integer = number
    case .boolean(let truth):
      value.kind = 5
      value.integer = truth ? 1 : 0
    case .other(let kind): value.kind = kind
    }
    return value
  }

  /// Converts an output. Copies the elements of a tensor.
  fileprivate init(_ from: torchette_value_t) throws {
    switch from.kind {
    case 0: self = .none
    case 1:
      var raw = from.tensor
      let tensor = try AnyTensor(shape: sizes(of: raw), dataType: elementType(of: raw))
      try check(torchette_tensor_copy(&raw, tensor.memory.baseAddress, tensor.byteCount))
      self = .tensor(tensor)
    case 3: self = .double(from.number)
    case 4: self = .integer(from.integer)
    case 5: self = .boolean(from.integer != 0)
    default: self = .other(from.kind)
    }
  }
}

private func sizes(of tensor: torchette_tensor_t) -> [Int] {
  withUnsafeBytes(of: tensor.sizes) { sizes in
    (0..<Int(tensor.dim)).map { Int(sizes.load(fromByteOffset: $0 * 8, as: Int64.self)) }
  }
}

private func elementType(of tensor: torchette_tensor_t) throws -> DataType {
  guard let type = DataType(rawValue: tensor.dtype) else {
    throw TorchetteError.invalidArgument("unknown dtype \(tensor.dtype)")
  }
  return type
}

/// Describes an input or output of a method. The sizes are upper bounds.
public struct ValueInfo {
  public let kind: Int32
  public let dataType: DataType?
  public let shape: [Int]
}

private let quiet: Void = torchette_set_log(nil)  // errors are thrown

/// An open program. A lock serializes calls, so several threads may use it.
public final class Module {
  private var handle: OpaquePointer?
  private let lock = NSLock()

  /// Opens a file by mapping it. `dataFilePaths` are .ptd files with weights. If `numberOfThreads` is 0, methods use one
  /// thread for each physical core.
  public init(filePath: String, dataFilePaths: [String] = [], numberOfThreads: Int = 0) throws {
    _ = quiet
    try check(torchette_module_open(filePath, 1, &handle))
    do {
      for path in dataFilePaths { try check(torchette_module_add_data_file(handle, path, 1)) }
      if numberOfThreads < 0 {
        throw TorchetteError.invalidArgument("numberOfThreads is \(numberOfThreads), expected 0 or greater")
      }
      if numberOfThreads > 0 { try check(torchette_module_set_num_threads(handle, numberOfThreads)) }
    } catch {
      close()
      throw error
    }
  }

  deinit { close() }

  /// Frees all memory. Further calls have no effect.
  public func close() {
    lock.lock()
    defer { lock.unlock() }
    torchette_module_free(handle)
    handle = nil
  }

  /// Returns the names of the methods.
  public func methodNames() throws -> Set<String> {
    try locked { module in
      Set((0..<torchette_module_num_methods(module)).map { String(cString: torchette_module_method_name(module, $0)) })
    }
  }

  /// Allocates memory for a method and loads it. `execute` does so if the method is not loaded.
  public func load(_ method: String = "forward") throws {
    try locked { try check(torchette_method_load($0, method)) }
  }

  /// Resets mutable state to the values that it had when the method was loaded.
  public func reset(_ method: String = "forward") throws {
    try locked { try check(torchette_method_reset($0, method)) }
  }

  /// Describes the inputs of a method.
  public func inputs(of method: String = "forward") throws -> [ValueInfo] {
    try locked { module in
      var count = 0
      try check(torchette_method_num_inputs(module, method, &count))
      return try (0..<count).map { index in
        var value = torchette_value_t()
        try check(torchette_method_input_info(module, method, index, &value))
        return try info(value)
      }
    }
  }

  /// Describes the outputs of a method.
  public func outputs(of method: String = "forward") throws -> [ValueInfo] {
    try locked { module in
      var count = 0
      try check(torchette_method_num_outputs(module, method, &count))
      return try (0..<count).map { index in
        var value = torchette_value_t()
        try check(torchette_method_output_info(module, method, index, &value))
        return try info(value)
      }
    }
  }

  private func info(_ value: torchette_value_t) throws -> ValueInfo {
    if value.kind != 1 { return ValueInfo(kind: value.kind, dataType: nil, shape: []) }
    return ValueInfo(kind: 1, dataType: try elementType(of: value.tensor), shape: sizes(of: value.tensor))
  }

  /// Runs the method "forward". `inputs` must contain a value for each input.
  public func forward(_ inputs: [Value]) throws -> [Value] { try execute("forward", inputs) }

  public func forward<T>(_ input: Tensor<T>) throws -> [Value] { try forward([.tensor(input.anyTensor)]) }

  /// Runs a method. `inputs` must contain a value for each input. Tensors in the result are copies. Throws
  /// TorchetteError if the inputs do not match the method or the execution fails.
  public func execute(_ method: String, _ inputs: [Value]) throws -> [Value] {
    try locked { module in
      let values = inputs.map { $0.raw }
      // An output may share the memory of an input, so the inputs stay alive until the outputs are copied.
      return try withExtendedLifetime(inputs) {
        try check(torchette_method_execute(module, method, values, values.count))
        var count = 0
        try check(torchette_method_num_outputs(module, method, &count))
        return try (0..<count).map { index in
          var output = torchette_value_t()
          try check(torchette_method_output(module, method, index, &output))
          return try Value(output)
        }
      }
    }
  }

  private func locked<R>(_ body: (OpaquePointer) throws -> R) throws -> R {
    lock.lock()
    defer { lock.unlock() }
    guard let module = handle else {
      throw TorchetteError(code: 2, name: "InvalidState", message: "the module is closed")
    }
    return try body(module)
  }
}
