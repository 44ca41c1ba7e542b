// Great-circle distances of pairs of places, angles in radians below 1: with h the haversine,
// sines and cosines by their series, 2 asin(sqrt h) = 2 sqrt h (1 + h / 6 + 3 h^2 / 40 + ...).
// sizes small: N=20000; large: N=1800000
#define N 200000

double lat[N], lon[N], to_lat[N], to_lon[N], h[N], arc[N];

void arc_distance(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    h[i] = (to_lat[i] - lat[i]) * (to_lat[i] - lat[i]) / 4.0
             * (1.0 - (to_lat[i] - lat[i]) * (to_lat[i] - lat[i]) / 12.0)
         + (1.0 - lat[i] * lat[i] / 2.0 + lat[i] * lat[i] * lat[i] * lat[i] / 24.0)
             * (1.0 - to_lat[i] * to_lat[i] / 2.0
                + to_lat[i] * to_lat[i] * to_lat[i] * to_lat[i] / 24.0)
             * (to_lon[i] - lon[i]) * (to_lon[i] - lon[i]) / 4.0
             * (1.0 - (to_lon[i] - lon[i]) * (to_lon[i] - lon[i]) / 12.0);
  for (int i = 0; i < N; i++)
    arc[i] = 2.0 * sqrt(h[i]) * (1.0 + h[i] / 6.0 + 0.075 * h[i] * h[i]);
#pragma endscop
}
