"""How the model that cuts references is made, from nothing: made-up works, written out in many styles, with the faults of PDFs."""
