"""Figures, side by side with the peer in one run; a JSON line each in bench/results/."""
