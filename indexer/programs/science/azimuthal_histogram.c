// For the mean brightness by direction: sums and counts of the pixels of every bin.
// sizes small: H=160 W=176 B=64; large: H=2000 W=2100 B=1024
#define H 700
#define W 720
#define B 360

int bin[H][W];
double image[H][W], sum[B], count[B];
#pragma embeddb fill bin below:B
#pragma embeddb fill sum zero
#pragma embeddb fill count zero

void azimuthal_histogram(void)
{
#pragma scop
  for (int y = 0; y < H; y++)
    for (int x = 0; x < W; x++) {
      sum[bin[y][x]] += image[y][x];
      count[bin[y][x]] += 1.0;
    }
#pragma endscop
}
