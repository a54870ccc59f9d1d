"""The papers' tables and figures as programs."""
