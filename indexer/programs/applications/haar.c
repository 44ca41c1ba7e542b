// One level of the Haar wavelet along the rows: scaled sums and differences of pairs.
// sizes small: H=160 W=200; large: H=1280 W=1200
#define H 480
#define W 512

float image[3][H][2 * W], low[3][H][W], high[3][H][W];

void haar(void)
{
#pragma scop
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x++) {
        low[c][y][x] = (image[c][y][2 * x] + image[c][y][2 * x + 1]) * 0.70710678f;
        high[c][y][x] = (image[c][y][2 * x] - image[c][y][2 * x + 1]) * 0.70710678f;
      }
#pragma endscop
}
