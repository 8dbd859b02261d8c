mod rendering;
