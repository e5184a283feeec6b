// SPDX-License-Identifier: BSD-3-Clause
// In: digits.pte and an image of 8 x 8 floats. Out: its digit and the probability.
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Locale
import org.torchette.DType
import org.torchette.EValue
import org.torchette.Module
import org.torchette.Tensor

fun main(arguments: Array<String>) {
    val picture = ByteBuffer.wrap(File(arguments[1]).readBytes()).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
    val pixels = FloatArray(picture.remaining()).also { picture.get(it) }
    Module.load(arguments[0]).use { module ->
        val input = Tensor.fromBlob(pixels, longArrayOf(1, 64))
        val scores = module.forward(EValue.from(input))[0].toTensor().dataAsFloatArray
        val best = scores.indices.sortedBy { scores[it] }.last()
        println("%d %.4f".format(Locale.ROOT, best, scores[best]))
    }
}
