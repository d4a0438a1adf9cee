"""Long-term prediction of a walking hexapod (section 6.1)."""
