# SPDX-License-Identifier: BSD-3-Clause
# In: nothing. Out: small speech models in the form of their families: a Conformer that encodes a stream chunk by chunk, and a
# synthesizer that predicts the length of its output.
"""`StreamingConformer`, `CacheConformer` and `Synthesizer`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

BINS, WIDTH, HEADS, KERNEL, CONTEXT = 16, 32, 4, 5, 12


class RelativePositions(nn.Module):
    """Sinusoidal embeddings of the distances from length - 1 to 1 - length."""

    def __init__(self, max_length: int) -> None:
        super().__init__()
        positions = torch.arange(max_length - 1, -max_length, -1.0).unsqueeze(1)
        rates = torch.exp(torch.arange(0, WIDTH, 2) * -(math.log(10000.0) / WIDTH))
        table = torch.stack([torch.sin(positions * rates), torch.cos(positions * rates)], 2).flatten(1)
        self.register_buffer("table", table.unsqueeze(0), persistent=False)
        self.center = max_length

    def forward(self, length: int) -> Tensor:
        return self.table[:, self.center - length : self.center + length - 1]


class RelativeAttention(nn.Module):
    """Attention with the relative positions of Transformer-XL; the keys are the cache's rows and the new rows."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.position = nn.Linear(WIDTH, WIDTH, bias=False)
        self.bias_u = nn.Parameter(torch.randn(HEADS, WIDTH // HEADS) * 0.1)
        self.bias_v = nn.Parameter(torch.randn(HEADS, WIDTH // HEADS) * 0.1)

    def forward(self, x: Tensor, rows: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        batch, count, _ = x.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(projected.shape[0], -1, HEADS, WIDTH // HEADS)

        query, key, value = (
            heads(layer(one)) for layer, one in ((self.query, x), (self.key, rows), (self.value, rows))
        )
        key, value = key.transpose(1, 2), value.transpose(1, 2)
        distance = heads(self.position(positions)).transpose(1, 2)
        by_content = (query + self.bias_u).transpose(1, 2) @ key.transpose(-2, -1)
        by_distance = (query + self.bias_v).transpose(1, 2) @ distance.transpose(-2, -1)
        scores = (by_content + self.shifted(by_distance)[..., : key.shape[2]]) / math.sqrt(WIDTH // HEADS)
        weights = torch.softmax(scores.masked_fill(hidden, -10000.0), -1).masked_fill(hidden, 0.0)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, count, WIDTH))

    @staticmethod
    def shifted(scores: Tensor) -> Tensor:
        """Moves the scores of a distance to the keys at this distance."""
        batch, heads, queries, distances = scores.shape
        padded = functional.pad(scores, (1, 0)).view(batch, heads, -1, queries)
        return padded[:, :, 1:].view(batch, heads, queries, distances)


class ConvolutionModule(nn.Module):
    """Gated, causal depthwise convolution; `earlier` are its last inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
        self.depthwise = nn.Conv1d(WIDTH, WIDTH, KERNEL, groups=WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, earlier: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([earlier, functional.glu(self.up(x.transpose(1, 2)), dim=1)], dim=2)
        result = self.down(functional.silu(self.norm(self.depthwise(inputs))))
        return result.transpose(1, 2), inputs[:, :, -(KERNEL - 1) :]


class ConformerLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH))
            for _ in range(2)
        )
        self.attention, self.convolution = RelativeAttention(), ConvolutionModule()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(
        self, x: Tensor, rows: Tensor, earlier: Tensor, positions: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the output, and the rows and the convolution's inputs for the next chunk."""
        x = x + 0.5 * self.first(x)
        normed = self.norms[0](x)
        keys = torch.cat([rows, normed], dim=1)
        x = x + self.attention(normed, keys, positions, hidden)
        convolved, earlier = self.convolution(self.norms[1](x), earlier)
        x = x + convolved
        return self.norms[2](x + 0.5 * self.second(x)), keys[:, -CONTEXT:], earlier


class CacheConformer(nn.Module):
    """Caches are inputs and outputs, as in exports of FastConformer.

    (features [1, bins, 4 n], rows [layers, 1, context, width], convolution [layers, 1, width, kernel - 1], length int64 [1],
    subsampled frames [1, 1, 3, bins]) -> (encoded [1, n, width], the four caches after the chunk).
    """

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, stride=2, padding=(0, 1))
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=(0, 1), groups=8)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.project = nn.Linear(8 * BINS // 4, WIDTH)
        self.positions = RelativePositions(256)
        self.layers = nn.ModuleList(ConformerLayer() for _ in range(layers))

    def forward(
        self, features: Tensor, rows: Tensor, convolution: Tensor, length: Tensor, frames: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        images = torch.cat([frames, features.transpose(1, 2).unsqueeze(1)], dim=2)
        x = functional.relu(self.pointwise(self.depthwise(functional.relu(self.first(images)))))
        x = self.project(x.transpose(1, 2).flatten(2))
        count = x.shape[1]
        # Queries see the filled rows of the cache and the earlier rows of the chunk.
        at, query = torch.arange(CONTEXT + count), torch.arange(count).unsqueeze(1) + CONTEXT
        hidden = ((at > query) | (at < CONTEXT - length.unsqueeze(1)))[None, None]
        positions = self.positions(CONTEXT + count)
        new_rows, new_convolution = [], []
        for layer, one_rows, one_convolution in zip(self.layers, rows.unbind(), convolution.unbind()):
            x, one_rows, one_convolution = layer(x, one_rows, one_convolution, positions, hidden)
            new_rows.append(one_rows)
            new_convolution.append(one_convolution)
        length = torch.clamp(length + count, max=CONTEXT)
        return x, torch.stack(new_rows), torch.stack(new_convolution), length, images[:, :, -3:]


def empty_caches(layers: int = 2) -> tuple[Tensor, ...]:
    """Returns the caches before the first chunk."""
    rows, convolution = torch.zeros(layers, 1, CONTEXT, WIDTH), torch.zeros(layers, 1, WIDTH, KERNEL - 1)
    return rows, convolution, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, 3, BINS)


class StreamingConformer(nn.Module):
    """The same encoder with the caches in buffers: features [1, bins, 4 n] -> encoded [1, n, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = CacheConformer()
        for name, value in zip(("rows", "convolution", "length", "frames"), empty_caches()):
            self.register_buffer(name, value)

    def forward(self, features: Tensor) -> Tensor:
        result, *caches = self.encoder(features, self.rows, self.convolution, self.length, self.frames)
        for buffer, value in zip((self.rows, self.convolution, self.length, self.frames), caches):
            buffer.copy_(value)
        return result


STYLE, HOP, FFT, UPSAMPLING, HARMONICS, RATE = 16, 5, 20, (4, 3), 4, 24_000
# Output samples per frame: the generator's strides, the hop of its STFT, and the frames that the decoder doubles.
SAMPLES = 2 * math.prod(UPSAMPLING) * HOP


class AdaptiveNorm(nn.Module):
    """Instance normalization with scale and offset from the style."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.InstanceNorm1d(channels, affine=True), nn.Linear(STYLE, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        scale, offset = self.linear(style).unsqueeze(2).chunk(2, dim=1)
        return (1 + scale) * self.norm(x) + offset


class AdaptiveLayerNorm(nn.Module):
    """Layer normalization of [batch, tokens, channels] with scale and offset from the style."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear, self.channels = nn.Linear(STYLE, 2 * channels), channels

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        scale, offset = self.linear(style).unsqueeze(1).chunk(2, dim=2)
        return (1 + scale) * functional.layer_norm(x, (self.channels,)) + offset


class AdaptiveBlock(nn.Module):
    """Residual block of the decoder and of the predictors; may double the frames."""

    def __init__(self, inputs: int, outputs: int, upsample: bool = False) -> None:
        super().__init__()
        self.first, self.second = AdaptiveNorm(inputs), AdaptiveNorm(outputs)
        self.convolutions = nn.ModuleList(
            [nn.Conv1d(inputs, outputs, 3, padding=1), nn.Conv1d(outputs, outputs, 3, padding=1)]
        )
        self.shortcut = nn.Conv1d(inputs, outputs, 1, bias=False)
        self.upsample = upsample
        self.pool = (
            nn.ConvTranspose1d(inputs, inputs, 3, 2, 1, output_padding=1, groups=inputs)
            if upsample
            else nn.Identity()
        )

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        y = self.pool(functional.leaky_relu(self.first(x, style), 0.2))
        y = functional.leaky_relu(self.second(self.convolutions[0](y), style), 0.2)
        shortcut = functional.interpolate(x, scale_factor=2.0, mode="nearest") if self.upsample else x
        return (self.convolutions[1](y) + self.shortcut(shortcut)) / math.sqrt(2)


class SnakeBlock(nn.Module):
    """Residual block of the generator with the activation x + sin(a x)^2 / a."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(AdaptiveNorm(channels) for _ in range(2))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(channels, channels, 3, padding=d, dilation=d) for d in (1, 3)
        )
        self.alphas = nn.ParameterList(torch.rand(1, channels, 1) + 0.5 for _ in range(2))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        for norm, convolution, alpha in zip(self.norms, self.convolutions, self.alphas):
            y = norm(x, style)
            x = x + convolution(y + (1 / alpha) * torch.sin(alpha * y) ** 2)
        return x


class TextEncoder(nn.Module):
    """Embedding, convolutions and a bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH)
        self.convolutions = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 5, padding=2) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.lstm = nn.LSTM(WIDTH, WIDTH // 2, 1, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for convolution, norm in zip(self.convolutions, self.norms):
            x = functional.leaky_relu(norm(convolution(x.transpose(1, 2)).transpose(1, 2)), 0.2)
        return self.lstm(x)[0].transpose(1, 2)


class Prosody(nn.Module):
    """Durations, and pitch and energy of the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.lstms = nn.ModuleList(
            nn.LSTM(WIDTH + STYLE, WIDTH // 2, 1, batch_first=True, bidirectional=True) for _ in range(3)
        )
        self.norm, self.duration = AdaptiveLayerNorm(WIDTH), nn.Linear(WIDTH, 8)
        self.pitch = nn.ModuleList([AdaptiveBlock(WIDTH, WIDTH), AdaptiveBlock(WIDTH, 16, upsample=True)])
        self.energy = nn.ModuleList([AdaptiveBlock(WIDTH, WIDTH), AdaptiveBlock(WIDTH, 16, upsample=True)])
        self.to_pitch, self.to_energy = nn.Conv1d(16, 1, 1), nn.Conv1d(16, 1, 1)

    def durations(self, text: Tensor, style: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the hidden states [1, tokens, width + style] and the frames of each token."""
        rows = style.unsqueeze(1).expand(-1, text.shape[2], -1)
        x = torch.cat([text.transpose(1, 2), rows], 2)
        x = torch.cat([self.norm(self.lstms[0](x)[0], style), rows], 2)
        frames = torch.sigmoid(self.duration(self.lstms[1](x)[0])).sum(-1) / speed
        return x, torch.round(frames).clamp(min=1).long().squeeze(0)

    def forward(self, frames: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        x = self.lstms[2](frames.transpose(1, 2))[0].transpose(1, 2)
        pitch = energy = x
        for one, other in zip(self.pitch, self.energy):
            pitch, energy = one(pitch, style), other(energy, style)
        return 200 + 40 * self.to_pitch(pitch).squeeze(1), self.to_energy(energy).squeeze(1)


class HarmonicSource(nn.Module):
    """Sines of the pitch and its harmonics: pitch [1, frames] -> [1, 1, samples]."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        self.scale, self.linear = scale, nn.Linear(HARMONICS, 1)

    def forward(self, pitch: Tensor) -> Tensor:
        pitch = functional.interpolate(
            pitch.unsqueeze(1), scale_factor=float(self.scale), mode="nearest"
        ).transpose(1, 2)
        cycles = (pitch * torch.arange(1, HARMONICS + 1)) / RATE % 1
        cycles = functional.interpolate(cycles.transpose(1, 2), scale_factor=1 / self.scale, mode="linear")
        phase = torch.cumsum(cycles, dim=2) * 2 * math.pi
        phase = functional.interpolate(phase * self.scale, scale_factor=float(self.scale), mode="linear")
        sines = torch.sin(phase.transpose(1, 2)) * 0.1 * (pitch > 10).float() + self.noise(pitch.shape[1])
        return torch.tanh(self.linear(sines)).transpose(1, 2)

    @staticmethod
    def noise(samples: int) -> Tensor:
        """Returns the same noise for each call, [1, samples, harmonics]: without noise, angles of weak frequencies are arbitrary."""
        at = torch.arange(samples * HARMONICS)
        bits = ((at * 1103515245 + 12345) ^ (at * 69069 // 64)) % 65536
        return (bits.float() / 65536 - 0.5).view(1, samples, HARMONICS) * 0.1


class Generator(nn.Module):
    """Upsamples frames with the harmonic source; the last layer predicts magnitude and phase of a short-time Fourier transform."""

    def __init__(self) -> None:
        super().__init__()
        channels, ahead = [32, 16, 8], [math.prod(UPSAMPLING[i + 1 :]) for i in range(2)]
        self.source = HarmonicSource(math.prod(UPSAMPLING) * HOP)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(channels[i], channels[i + 1], 2 * s, s, (s + 1) // 2, output_padding=s % 2)
            for i, s in enumerate(UPSAMPLING)
        )
        self.noise = nn.ModuleList(
            nn.Conv1d(FFT + 2, channels[i + 1], 2 * s if s > 1 else 1, s, (s + 1) // 2 if s > 1 else 0)
            for i, s in enumerate(ahead)
        )
        self.noise_blocks = nn.ModuleList(SnakeBlock(c) for c in channels[1:])
        self.blocks = nn.ModuleList(SnakeBlock(c) for c in channels[1:])
        self.out = nn.Conv1d(channels[-1], FFT + 2, 7, padding=3)
        self.register_buffer("window", torch.hann_window(FFT))

    def forward(self, x: Tensor, style: Tensor, pitch: Tensor) -> Tensor:
        source = self.source(pitch).squeeze(1)
        # With reflected borders, the outer frames would be symmetric, and rounding would choose the angle pi or -pi.
        spectrum = torch.stft(source, FFT, HOP, window=self.window, pad_mode="constant", return_complex=True)
        harmonics = torch.cat([spectrum.abs(), spectrum.angle()], 1)
        for i, (up, noise) in enumerate(zip(self.ups, self.noise)):
            x = functional.leaky_relu(x, 0.1)
            added = self.noise_blocks[i](noise(harmonics), style)
            x = up(x)
            if i == len(self.ups) - 1:
                x = functional.pad(x, (1, 0), mode="reflect")
            x = self.blocks[i](x + added, style)
        x = self.out(functional.leaky_relu(x))
        magnitude, phase = torch.exp(x[:, : FFT // 2 + 1]), torch.sin(x[:, FFT // 2 + 1 :])
        return torch.istft(magnitude * torch.exp(phase * 1j), FFT, HOP, window=self.window)


class Synthesizer(nn.Module):
    """(tokens int64 [1, n], style [1, 2 style], speed []) -> samples [1, frames * SAMPLES], frames int64 [n]."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.prosody, self.generator = TextEncoder(), Prosody(), Generator()
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.encode = AdaptiveBlock(WIDTH + 2, WIDTH)
        self.decode = nn.ModuleList(
            [AdaptiveBlock(WIDTH + 2, WIDTH), AdaptiveBlock(WIDTH + 2, 32, upsample=True)]
        )
        self.pitch, self.energy = (nn.Conv1d(1, 1, 3, stride=2, padding=1) for _ in range(2))

    def forward(self, tokens: Tensor, style: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        text, (timbre, manner) = self.text(tokens), style.chunk(2, dim=1)
        hidden, frames = self.prosody.durations(
            self.projection(text.transpose(1, 2)).transpose(1, 2), manner, speed
        )
        at = torch.repeat_interleave(torch.arange(tokens.shape[1]), frames)
        alignment = torch.zeros(tokens.shape[1], at.shape[0])
        alignment[at, torch.arange(at.shape[0])] = 1
        pitch, energy = self.prosody(hidden.transpose(1, 2) @ alignment, manner)
        added = [self.pitch(pitch.unsqueeze(1)), self.energy(energy.unsqueeze(1))]
        x = self.encode(torch.cat([text @ alignment, *added], 1), timbre)
        for block in self.decode:
            x = block(torch.cat([x, *added], 1), timbre)
        return self.generator(x, timbre, pitch), frames
