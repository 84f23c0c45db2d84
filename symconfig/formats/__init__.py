"""One table per program, of links between fields and options. Rendering writes the links, recovering reads them."""
