// Sharpening: a binomial blur of five taps along rows and columns, and 2.5 times what it took
// away added to the image, within 0 and 1.
// sizes small: H=160 W=200; large: H=1120 W=1440
#define H 480
#define W 560

float image[3][H + 4][W + 4], rows[3][H + 4][W], blurred[3][H][W], sharp[3][H][W];

void unsharp(void)
{
#pragma scop
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < H + 4; y++)
      for (int x = 0; x < W; x++)
        rows[c][y][x] = 0.0625f * (image[c][y][x] + image[c][y][x + 4])
                      + 0.25f * (image[c][y][x + 1] + image[c][y][x + 3])
                      + 0.375f * image[c][y][x + 2];
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x++)
        blurred[c][y][x] = 0.0625f * (rows[c][y][x] + rows[c][y + 4][x])
                         + 0.25f * (rows[c][y + 1][x] + rows[c][y + 3][x])
                         + 0.375f * rows[c][y + 2][x];
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x++)
        sharp[c][y][x] = fminf(fmaxf(3.5f * image[c][y + 2][x + 2] - 2.5f * blurred[c][y][x], 0.0f),
                               1.0f);
#pragma endscop
}
