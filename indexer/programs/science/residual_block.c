// The end of a residual block, channels last: a 1 x 1 convolution of stride 2, then scale, shift,
// add the short cut, and cut off what is negative.
// sizes small: H=20 W=20 C=32 O=64; large: H=48 W=48 C=96 O=128
#define H 28
#define W 28
#define C 64
#define O 128

float X[2 * H][2 * W][C], F[C][O], T[H][W][O], scale[O], shift[O], cut[H][W][O], Y[H][W][O];
#pragma embeddb fill T zero

void residual_block(void)
{
#pragma scop
  for (int y = 0; y < H; y++)
    for (int x = 0; x < W; x++)
      for (int c = 0; c < C; c++)
        for (int o = 0; o < O; o++)
          T[y][x][o] += X[2 * y][2 * x][c] * F[c][o];
  for (int y = 0; y < H; y++)
    for (int x = 0; x < W; x++)
      for (int o = 0; o < O; o++)
        Y[y][x][o] = fmaxf(scale[o] * T[y][x][o] + shift[o] + cut[y][x][o], 0.0f);
#pragma endscop
}
