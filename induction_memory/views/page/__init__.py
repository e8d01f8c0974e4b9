"""The page: measurements of a run and scripts in one HTML file that needs no network."""
