"""The page that a browser shows at `/`: the files that `web/` is built into, with the headers that keep foreign code
and foreign hosts away from it. The page holds no data; everything that it shows comes from the public API."""
