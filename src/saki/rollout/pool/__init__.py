"""A pool of resident replicas behind one engine (Appendix K.4)."""
