// Equalised brightness: counts of the grey levels of every channel, the share of pixels up to
// each level, and every pixel's level replaced by that share.
// sizes small: H=128 W=192 L=256; large: H=1280 W=1600 L=512
#define H 480
#define W 640
#define L 256

int image[3][H][W];
float count[3][L], share[3][L], equalised[3][H][W];
#pragma embeddb fill image below:L
#pragma embeddb fill count zero
#pragma embeddb fill share zero

void histogram(void)
{
#pragma scop
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x++)
        count[c][image[c][y][x]] += 1.0f;
  for (int c = 0; c < 3; c++)
    for (int v = 0; v < L; v++)
      for (int u = 0; u < v + 1; u++)
        share[c][v] += count[c][u] / (H * W);
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x++)
        equalised[c][y][x] = share[c][image[c][y][x]];
#pragma endscop
}
